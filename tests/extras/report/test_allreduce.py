"""What an all-reduce costs: the fit, what is refused, and real processes measured for a moment."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import allreduce
import numpy
import pytest
from ranks import in_ranks

from lockstep.errors import ConfigError
from lockstep.launchers.environment import Rank
from lockstep.launchers.outcome import Outcome

PLANTED = allreduce.Ring(latency=20e-6, latency_error=0.0, bandwidth=2e9, bandwidth_error=0.0)


def noisy(processes: int, noise: float, seed: int = 0) -> list[float]:
    factors = 1 + noise * numpy.random.default_rng(seed + processes).standard_normal(len(allreduce.SIZES))
    return [PLANTED.seconds(processes, size) * float(factor) for size, factor in zip(allreduce.SIZES, factors, strict=True)]


def test_a_ring_of_four_sends_six_messages_of_a_quarter() -> None:
    assert PLANTED.seconds(4, 8_000_000) == pytest.approx(6 * (20e-6 + 2_000_000 / 2e9))


@pytest.mark.parametrize("processes", [(2,), (4,), (2, 4)])
@pytest.mark.parametrize("seed", [0, 100])
def test_the_fit_recovers_what_was_planted_within_its_errors(processes: tuple[int, ...], seed: int) -> None:
    ring = allreduce.fitted({count: noisy(count, 0.05, seed) for count in processes})
    assert ring.latency == pytest.approx(PLANTED.latency, rel=0.1)
    assert ring.bandwidth == pytest.approx(PLANTED.bandwidth, rel=0.1)
    assert ring.latency_error < 0.1 * ring.latency
    assert abs(ring.latency - PLANTED.latency) < 4 * ring.latency_error
    assert ring.bandwidth_error < 0.1 * ring.bandwidth
    assert abs(ring.bandwidth - PLANTED.bandwidth) < 4 * ring.bandwidth_error


def test_a_bandwidth_that_does_not_show_is_infinite() -> None:
    ring = allreduce.fitted({2: [1e-3 - 1e-6 * i for i in range(len(allreduce.SIZES))]})
    assert ring.bandwidth == math.inf
    assert ring.seconds(2, 2**20) == pytest.approx(1e-3, rel=0.01)
    assert "bandwidth too large to be told" in allreduce.report("gloo", {2: [1e-3] * len(allreduce.SIZES)}, ring)


def test_real_processes_take_some_time_and_larger_messages_more(tmp_path: Path) -> None:
    small, large = in_ranks(2, measured_here, tmp_path)[0]
    assert 0 < small < large < 1


def measured_here(_rank: int, _world_size: int) -> tuple[float, float]:
    return allreduce.measured(1024, 0.05), allreduce.measured(2**22, 0.05)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--processes", "1"], "--processes=1: accepted is 2 to 16"),
        (["--processes", "2", "17"], "--processes=17: accepted is 2 to 16"),
        (["--backend", "nccl"], "--backend=nccl: 2 processes need as many GPUs, this machine shows 0"),
        (["--largest", "0"], "--largest=0: accepted is 0.016 to 64, in MiB"),
        (["--seconds", "0"], "--seconds=0: accepted is 0.1 to 600"),
        (["--json", "nowhere/there.json"], "--json=nowhere/there.json: accepted is a file in a folder that is there"),
    ],
)
def test_what_can_not_be_measured_is_refused(arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce, "visible_gpus", lambda: 0)
    monkeypatch.setattr(allreduce, "visible_cores", lambda: 2)
    monkeypatch.setattr(sys, "argv", ["allreduce.py", *arguments])
    with pytest.raises(ConfigError) as refused:
        allreduce.main()
    assert str(refused.value) == line


def test_processes_that_fail_are_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def killed(*_: Any, **__: Any) -> Outcome:
        return Outcome(code=1, reason="rank 1 was killed by SIGKILL", rank=1)

    monkeypatch.setattr(allreduce, "supervise", killed)
    with pytest.raises(SystemExit) as left:
        allreduce.in_processes(2, "gloo", 1.0)
    assert left.value.code == 1
    assert capsys.readouterr().err == "Not measured over 2 processes: rank 1 was killed by SIGKILL\n"


def test_it_writes_latency_and_bandwidth_of_all_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "allreduce.json"
    monkeypatch.setattr(sys, "argv", ["allreduce.py", "--processes", "2", "4", "--json", str(file)])
    monkeypatch.setattr(allreduce, "checked", lambda *_: "gloo")
    monkeypatch.setattr(allreduce, "in_processes", lambda count, *_: noisy(count, 0.05))
    allreduce.main()
    ring = json.loads(file.read_text())["all"]
    assert (ring["latency"], ring["bandwidth"]) == (pytest.approx(20e-6, rel=0.1), pytest.approx(2e9, rel=0.1))
    monkeypatch.setattr(sys, "argv", ["allreduce.py", "--json", str(file)])
    monkeypatch.setattr(allreduce, "in_processes", lambda *_: [1e-3 - 1e-6 * i for i in range(len(allreduce.SIZES))])
    allreduce.main()
    assert json.loads(file.read_text())["all"]["bandwidth"] is None  # it does not show


def test_torchrun_s_processes_measure_together_up_to_the_largest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One on each of two hosts."""
    monkeypatch.setattr(allreduce, "this_rank", lambda: Rank("torchrun", 0, 0, 2, 2))
    monkeypatch.setattr(allreduce, "visible_gpus", lambda: 0)
    monkeypatch.setattr(allreduce, "in_group", lambda _rank, _backend, _seconds, sizes: noisy(2, 0.05)[: len(sizes)])
    monkeypatch.setattr(sys, "argv", ["allreduce.py", "--largest", "0.25"])
    allreduce.main()
    rows = capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [["2", size] for size in ("1", "4", "16", "64", "256")]
