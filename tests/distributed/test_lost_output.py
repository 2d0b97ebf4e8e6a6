"""A terminal that closes, a pipe whose reader has gone, and one that nobody reads: nothing of a run or a sweep is lost."""

import contextlib
import csv
import json
import os
import pty
import signal
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from commands import ROOT, TIMEOUT, started
from waiting import wait_for

from lockstep.sweeps.sweep_jobs import SweepJobs

pytestmark = pytest.mark.slow
TRAIN = (ROOT / "train.py", "trainer.accelerator=cpu", "model=mlp")
SLOW = "+callbacks.slow={_target_:faults.Slow}"


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def close_after_a_line(process: Popen[str]) -> None:
    """As of `2>&1 | head -1`."""
    process.stdout.readline()
    process.stdout.close()
    process.stderr.close()


def fill(process: Popen[str]) -> None:
    """As of `2>&1 | sleep 1000`: full before the first line."""
    for reader in (process.stdout, process.stderr):
        writer = os.open(f"/proc/self/fd/{reader.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
        for size in (65536, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(writer, b"x" * size)
        os.close(writer)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_whose_reader_has_gone_finishes(devices: int, tmp_path: Path) -> None:
    """Of one process in an interpreter of its own, which writes what it has not yet written when it ends."""
    options = ("debug=fast", "hydra.run.dir=run", f"trainer.devices={devices}")
    with started(*TRAIN, *options, fresh=devices == 1, cwd=tmp_path) as run:
        close_after_a_line(run)
        assert run.wait(timeout=TIMEOUT) == 0
    status = read(tmp_path / "run" / "status.json")
    assert (status["status"], status["reason"]) == ("finished", "trainer.max_epochs=1")
    record = read(tmp_path / "run" / "metrics.json")
    assert record["world_size"] == devices
    assert {"val/acc", "test/acc"} <= record["metrics"].keys()
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert "run directory" not in (tmp_path / "run" / "train.log").read_text()  # which only the terminal would have shown


def test_a_run_that_nobody_reads_is_neither_held_up_nor_is_its_end(tmp_path: Path) -> None:
    arguments = ("trainer.devices=2", "trainer.max_epochs=50", "hydra.run.dir=run", "test=false", SLOW)
    with started(*TRAIN, *arguments, cwd=tmp_path) as run:
        fill(run)
        wait_for((tmp_path / "run" / "training").exists)
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=TIMEOUT) == 75
    status = read(tmp_path / "run" / "status.json")
    assert (status["status"], status["reason"]) == ("preempted", "preempted by SIGINT")
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()


SWEEPS = {
    "jobs that train, whose reader has gone": (TRAIN, "debug=fast", close_after_a_line),
    "small jobs, that nobody reads": (
        (ROOT / "tests" / "support" / "fakes" / "program.py", "trainer.accelerator=cpu", "fresh_processes=true"),
        "name=small",
        fill,
    ),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_finishes_with_its_table(name: str, tmp_path: Path) -> None:
    (program, *fixed), option, lose = SWEEPS[name]
    arguments = (program, "-m", *fixed, option, "seed=0,1", "hydra.sweep.dir=sweep")
    with started(*arguments, fresh=name.startswith("small"), cwd=tmp_path) as sweep:
        lose(sweep)
        assert sweep.wait(timeout=TIMEOUT) == 0
    jobs = SweepJobs(tmp_path / "sweep").jobs.values()
    assert [job.status for job in jobs] == ["finished"] * 2
    metrics = [read(tmp_path / "sweep" / job.directory.name / "metrics.json")["metrics"]["val/acc"] for job in jobs]
    assert [job.metric for job in jobs] == metrics
    with (tmp_path / "sweep" / "results.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["finished"] * 2


IN_A_TERMINAL = """
import os, runpy, sys
assert os.getsid(0) == os.getpid()
terminal = os.open(sys.argv[1], os.O_RDWR)  # which becomes this session's
for descriptor in range(3):
    os.dup2(terminal, descriptor)
os.close(terminal)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_terminal_that_closes_ends_a_run_to_be_resumed(tmp_path: Path) -> None:
    """And that nobody has read until then, as of a connection that hangs."""
    own, other = pty.openpty()
    name = os.ttyname(other)
    arguments = ("trainer.devices=2", "trainer.max_epochs=50", "hydra.run.dir=run", SLOW)
    (tmp_path / "in_a_terminal.py").write_text(IN_A_TERMINAL)
    with started(tmp_path / "in_a_terminal.py", name, *TRAIN, *arguments, cwd=tmp_path) as run:
        os.close(other)
        wait_for((tmp_path / "run" / "training").exists)
        os.close(own)
        assert run.wait(timeout=TIMEOUT) == 75
    status = read(tmp_path / "run" / "status.json")
    assert (status["status"], status["reason"]) == ("preempted", "preempted by SIGHUP")
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()
