"""A run of several processes that goes wrong ends soon, says why once, and leaves nothing running."""

import os
import signal
import time
from pathlib import Path

import pytest
from commands import ROOT, living_in, started, status, train
from waiting import wait_for

TWO = ("trainer.devices=2", "hydra.run.dir=run", "test=false")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "rank", "reason"),
    [
        ("raise in barrier", 1, "rank 1: ArithmeticError: planted fault"),
        ("exit", 1, "rank 1 ended with code 7 and no word"),
        ("kill", 0, "rank 0 was killed by SIGKILL"),
    ],
)
def test_a_failing_rank_ends_the_run(tmp_path: Path, how: str, rank: int, reason: str) -> None:
    done = train(*TWO, f"+callbacks.fault={{_target_:faults.Fault,rank:{rank},how:{how}}}", cwd=tmp_path)
    assert done.returncode == 1
    recorded = status(tmp_path / "run")
    assert (recorded["status"], recorded["reason"], recorded["rank"]) == ("failed", reason, rank)
    shown = done.stdout + done.stderr
    assert shown.count("Traceback") == (1 if "raise" in how else 0), shown
    assert shown.count(f"The run failed: {reason}") == 1
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_the_end_comes_soon_after_the_fault(tmp_path: Path) -> None:
    """Rank 1 dies while rank 0 sleeps outside any collective, where no broken connection wakes it."""
    faults = "+callbacks.a={_target_:faults.Fault,rank:0,how:hang}", "+callbacks.b={_target_:faults.Fault,rank:1,how:kill}"
    with started(ROOT / "train.py", "trainer.accelerator=cpu", *TWO, *faults, cwd=tmp_path) as run:
        log = tmp_path / "run" / "train.log"
        wait_for(lambda: log.is_file() and "samples per epoch" in log.read_text())
        since = time.monotonic()
        assert run.wait(timeout=60) == 1
        assert time.monotonic() - since < 30  # of the ten minutes that the other one would sleep
    assert status(tmp_path / "run")["reason"] == "rank 1 was killed by SIGKILL"


def test_a_rank_that_raises_does_not_wait_for_what_it_has_asked_the_others(tmp_path: Path) -> None:
    """Rank 0 has asked whether anybody is to stop, and raises; rank 1 waits for data, and has not come to that question."""
    faults = ("+callbacks.a={_target_:faults.LateBatch,rank:1,batch:2}", "+callbacks.b={_target_:faults.Fault,rank:0,how:raise}")
    arguments = ("trainer.accelerator=cpu", *TWO, *faults, "guards.preemption.every_n_steps=1")
    with started(ROOT / "train.py", *arguments, cwd=tmp_path) as run:
        assert run.wait(timeout=90) == 1
    assert status(tmp_path / "run")["reason"] == "rank 0: ArithmeticError: planted fault"


def test_ranks_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """And so do their data workers."""
    slow = ("datamodule.num_workers=1", "+callbacks.slow={_target_:faults.Slow}")
    with started(ROOT / "train.py", "trainer.accelerator=cpu", *TWO, *slow, cwd=tmp_path, fresh=True) as run:
        wait_for((tmp_path / "run" / "training").exists)
        wait_for(lambda: len(living_in(tmp_path)) >= 5, pause=0.2)  # two ranks, their workers, and the fork server
        run.kill()
        run.wait()
        wait_for(lambda: not living_in(tmp_path), seconds=30, pause=0.2)


def test_a_request_to_the_whole_group_spares_the_data_workers(tmp_path: Path) -> None:
    """As from `timeout`, `kill -- -PGID` or a container's end; torch's workers would die of it, and the run with them."""
    workers = ("datamodule.num_workers=2", "+callbacks.slow={_target_:faults.Slow}")
    arguments = ("trainer.accelerator=cpu", "hydra.run.dir=run", "trainer.max_epochs=50", *workers)
    with started(ROOT / "train.py", *arguments, cwd=tmp_path) as run:
        wait_for((tmp_path / "run" / "training").exists)
        assert os.getpgid(run.pid) == run.pid
        os.killpg(run.pid, signal.SIGTERM)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 75, errors
    assert status(tmp_path / "run")["reason"] == "preempted by SIGTERM"
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()
