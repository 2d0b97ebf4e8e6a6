"""What a batch script does when srun has ended, with a stand-in for SLURM."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from saved_run import save_run

from lockstep.extras.slurm.after_srun import main

RUNNING = {"status": "running", "reason": None}
LOST = {"status": "failed", "reason": "rank 1 is lost", "has_lost_rank": True}
REQUEUED, LEFT = "requeue 7", ""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `scontrol` was called with, in job 7, which runs."""
    calls = tmp_path / "calls"
    calls.touch()
    for name, line in {"scontrol": f'echo "$@" >> {calls}', "squeue": "echo 'RUNNING|5:00'"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(tmp_path)
    return calls


def run(folder: Path, **said: Any) -> Path:
    save_run(folder / "run")
    (folder / "run" / "status.json").write_text(json.dumps({"slurm_job": "7", "slurm_restarts": 0} | said))
    return folder / "run"


def status(run_dir: Path) -> tuple[str, str | None, int | None]:
    content = json.loads((run_dir / "status.json").read_text())
    return content["status"], content["reason"], content.get("requeues")


KILLED = "a rank was killed by SIGKILL"


@pytest.mark.parametrize(
    ("said", "code", "done", "stands"),
    [
        (RUNNING, 137, REQUEUED, ("preempted", f"{KILLED}; restart 1 of 2", 1)),
        (LOST, 1, REQUEUED, ("preempted", "rank 1 is lost; restart 1 of 2", 1)),
        (LOST | {"requeues": 2}, 1, LEFT, ("failed", "rank 1 is lost, after 2 restart(s)", 2)),
        (RUNNING | {"requeues": 2}, 138, REQUEUED, ("preempted", "preempted by SIGUSR1", 2)),
        ({"status": "failed", "reason": "rank 0: ValueError"}, 1, LEFT, ("failed", "rank 0: ValueError", None)),
        ({"status": "preempted", "reason": "preempted by SIGTERM"}, 75, LEFT, ("preempted", "preempted by SIGTERM", None)),
    ],
)
def test_a_lost_rank_is_a_requeue_for_a_number_of_times(
    said: dict[str, Any], code: int, done: str, stands: object, calls: Path, tmp_path: Path
) -> None:
    run_dir = run(tmp_path, **said)
    main(code, 2, ["hydra.run.dir=elsewhere", "resume=run", "trainer.devices=2"])
    assert calls.read_text().strip() == done
    assert status(run_dir) == stands


@pytest.mark.parametrize(("code", "done"), [(233, REQUEUED), (75, REQUEUED), (2, LEFT)])
def test_where_no_run_has_begun_nothing_is_left(code: int, done: str, calls: Path, tmp_path: Path) -> None:
    main(code, 2, ["hydra.run.dir=run"])
    assert calls.read_text().strip() == done
    assert not (tmp_path / "run").exists()


def test_what_never_begins_is_not_tried_for_ever(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    main(233, 2, ["hydra.run.dir=run"])
    assert calls.read_text() == ""


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(("state", "stands"), [("RUNNING", "failed"), ("PENDING", "preempted")])
def test_a_requeue_that_slurm_refuses(state: str, stands: str, tmp_path: Path) -> None:
    """It has put the job back by itself, or will not."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho no >&2; exit 1\n")
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho '{state}|1:00'\n")
    run_dir = run(tmp_path, **LOST)
    main(1, 2, ["hydra.run.dir=run"])
    assert status(run_dir)[0] == stands
    assert ("SLURM job 7 was not requeued: no" in str(status(run_dir)[1])) == (stands == "failed")
