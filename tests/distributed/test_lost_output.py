"""A terminal that closes, and a pipe whose reader has gone: nothing of a run or a sweep is lost."""

import csv
import os
import pty
from pathlib import Path
from subprocess import Popen

import pytest
from commands import ROOT, TIMEOUT, record, started, status
from waiting import wait_for

from lockstep.sweeps.jobs import SweepJobs

pytestmark = pytest.mark.slow
TRAIN = (ROOT / "train.py", "trainer.accelerator=cpu", "model=mlp")
SLOW = "+callbacks.slow={_target_:faults.Slow}"


def close_after_a_line(process: Popen[str]) -> None:
    """As of `2>&1 | head -1`."""
    process.stdout.readline()
    process.stdout.close()
    process.stderr.close()


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_whose_reader_has_gone_finishes(devices: int, tmp_path: Path) -> None:
    options = ("debug=fast", "hydra.run.dir=run", f"trainer.devices={devices}")
    with started(*TRAIN, *options, fresh=True, cwd=tmp_path) as run:
        close_after_a_line(run)
        assert run.wait(timeout=TIMEOUT) == 0
    said = status(tmp_path / "run")
    assert (said["status"], said["reason"]) == ("finished", "trainer.max_epochs=1")
    facts = record(tmp_path / "run")
    assert facts["world_size"] == devices
    assert {"val/acc", "test/acc"} <= facts["metrics"].keys()
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert "run directory" not in (tmp_path / "run" / "train.log").read_text()  # which only the terminal would have shown


def test_a_sweep_whose_reader_has_gone_finishes_with_its_table(tmp_path: Path) -> None:
    with started(
        *TRAIN[:1], "-m", *TRAIN[1:], "debug=fast", "seed=0,1", "hydra.sweep.dir=sweep", fresh=True, cwd=tmp_path
    ) as sweep:
        close_after_a_line(sweep)
        assert sweep.wait(timeout=TIMEOUT) == 0
    jobs = SweepJobs(tmp_path / "sweep").jobs.values()
    assert [job.status for job in jobs] == ["finished"] * 2
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
    own, other = pty.openpty()
    name = os.ttyname(other)
    arguments = ("trainer.devices=2", "trainer.max_epochs=50", "hydra.run.dir=run", SLOW)
    (tmp_path / "in_a_terminal.py").write_text(IN_A_TERMINAL)
    with started(tmp_path / "in_a_terminal.py", name, *TRAIN, *arguments, cwd=tmp_path) as run:
        os.close(other)
        wait_for((tmp_path / "run" / "training").exists)
        os.close(own)
        assert run.wait(timeout=TIMEOUT) == 75
    said = status(tmp_path / "run")
    assert (said["status"], said["reason"]) == ("preempted", "preempted by SIGHUP")
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()
