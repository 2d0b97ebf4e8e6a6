"""What a batch script does when srun has ended, and a run that SLURM warns, with a stand-in for SLURM."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from saved_run import save_run

from lockstep.launchers.environment import queue
from lockstep.slurm.after_srun import main

RUNNING = {"status": "running", "reason": None}
LOST = {"status": "failed", "reason": "rank 1 is lost", "has_lost_rank": True}
REQUEUED, LEFT = "requeue 7", ""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `scontrol` was called with, in job 7, which runs."""
    calls = tmp_path / "calls"
    calls.touch()
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(tmp_path)
    return calls


def run(folder: Path, **said: Any) -> Path:
    save_run(folder / "run")
    (folder / "run" / "status.json").write_text(json.dumps({"slurm_job": "7", "slurm_restarts": 0} | said))
    return folder / "run"


def status(run_dir: Path) -> tuple[str, str | None]:
    content = json.loads((run_dir / "status.json").read_text())
    return content["status"], content["reason"]


@pytest.mark.parametrize(
    ("said", "code", "done", "stands"),
    [
        (RUNNING, 137, REQUEUED, ("preempted", "srun has ended with code 137 and its ranks without a word")),
        (LOST, 1, REQUEUED, ("preempted", "rank 1 is lost")),
        ({"status": "failed", "reason": "rank 0: ValueError"}, 1, LEFT, ("failed", "rank 0: ValueError")),
        ({"status": "preempted", "reason": "preempted by SIGTERM"}, 75, LEFT, ("preempted", "preempted by SIGTERM")),
    ],
)
def test_a_lost_rank_is_a_requeue(
    said: dict[str, Any], code: int, done: str, stands: object, calls: Path, tmp_path: Path
) -> None:
    run_dir = run(tmp_path, **said)
    main(code, 2, ["hydra.run.dir=elsewhere", "resume=run", "trainer.devices=2"])
    assert calls.read_text().strip() == done
    assert status(run_dir) == stands


def test_what_loses_its_ranks_each_time_is_not_tried_for_ever(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    run_dir = run(tmp_path, **LOST | {"slurm_restarts": 2})
    main(1, 2, ["hydra.run.dir=run"])
    assert (calls.read_text(), status(run_dir)) == ("", ("failed", "rank 1 is lost"))


@pytest.mark.usefixtures("calls")
def test_a_requeue_that_slurm_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho no >&2; exit 1\n")
    run_dir = run(tmp_path, **LOST)
    main(1, 2, ["hydra.run.dir=run"])
    assert status(run_dir) == ("failed", "rank 1 is lost; the job was not requeued: scontrol: no")


def test_only_the_warning_before_a_time_limit_requeues(calls: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, 0):
        assert queue().requeue_when_warned(number, True) is None
    said = "SLURM job 7 was not requeued: it would begin anew, in another directory; give hydra.run.dir"
    assert queue().requeue_when_warned(signal.SIGUSR1, False) == said
    assert calls.read_text() == LEFT
    assert queue().requeue_when_warned(signal.SIGUSR1, True) == "SLURM job 7 is requeued"
    assert calls.read_text().strip() == REQUEUED
