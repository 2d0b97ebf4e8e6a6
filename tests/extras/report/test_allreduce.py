"""What an all-reduce costs: what is printed and refused, and real processes measured for a moment."""

import json
import sys
from pathlib import Path
from typing import Any

import allreduce
import pytest
from ranks import in_ranks

from lockstep.errors import ConfigError
from lockstep.launchers.environment import Rank
from lockstep.launchers.outcome import Outcome

TIMES = [1e-4 * (number + 1) for number in range(len(allreduce.SIZES))]  # seconds, by size


def test_a_ring_of_four_sends_six_messages_of_a_quarter() -> None:
    assert allreduce.link_bytes(4, 8_000_000) == 6 * 2_000_000
    row = allreduce.report("gloo", {4: [0.012]}, [8_000_000]).splitlines()[-1]
    assert row.split() == ["4", "7,812", "12.000", "1.000"]


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

    monkeypatch.setattr(allreduce, "launch", killed)
    with pytest.raises(SystemExit) as left:
        allreduce.in_processes(2, "gloo", 1.0)
    assert left.value.code == 1
    assert capsys.readouterr().err == "Not measured over 2 processes: rank 1 was killed by SIGKILL\n"


def test_it_writes_the_times_of_all_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "allreduce.json"
    monkeypatch.setattr(sys, "argv", ["allreduce.py", "--processes", "2", "4", "--json", str(file)])
    monkeypatch.setattr(allreduce, "checked", lambda *_: "gloo")
    monkeypatch.setattr(allreduce, "in_processes", lambda *_: TIMES)
    allreduce.main()
    written = json.loads(file.read_text())["processes"]
    assert written == {count: {"sizes": [*allreduce.SIZES], "seconds": TIMES} for count in ("2", "4")}


def test_torchrun_s_processes_measure_together_up_to_the_largest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One on each of two hosts."""
    monkeypatch.setattr(allreduce, "this_rank", lambda: Rank("torchrun", 0, 0, 2, 2))
    monkeypatch.setattr(allreduce, "visible_gpus", lambda: 0)
    monkeypatch.setattr(allreduce, "in_group", lambda _rank, _backend, _seconds, sizes: TIMES[: len(sizes)])
    monkeypatch.setattr(sys, "argv", ["allreduce.py", "--largest", "0.25"])
    allreduce.main()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split()[:2] for row in rows] == [["2", size] for size in ("1", "4", "16", "64", "256")]
