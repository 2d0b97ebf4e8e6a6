"""Runs in a SLURM job, without any SLURM: the variables of ranks, a warning, and the batch script when srun has ended."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, runs, started, status, train
from saved_run import save_run

from lockstep.atomic_files import write_json
from lockstep.errors import ConfigError
from lockstep.launchers.environment import queue, rank_in
from lockstep.slurm.after_srun import main

TASK = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}  # task 0 of 8
TWO = TASK | {"SLURM_STEP_ID": "3", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1"}


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"ENVIRONMENT": "BATCH"}, "inside sbatch, start it with `srun python train.py ...`"),  # the batch script is task 0, too
        ({"SLURM_STEP_ID": "3", "SLURM_NNODES": "2"}, "give --ntasks-per-node to srun or sbatch, which Lightning needs"),
    ],
)
def test_an_environment_by_which_ranks_would_train_alone_is_refused(more: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        rank_in(TASK | more)
    assert str(refused.value).startswith(f"SLURM_NTASKS=8: {line}")


@pytest.mark.slow
def test_slurm_starts_the_ranks(tmp_path: Path) -> None:
    job = TWO | {"SLURM_NODEID": "0", "SLURM_JOB_NAME": "train", "SLURM_JOB_NODELIST": "localhost"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    options = (ROOT / "train.py", "trainer=cpu", "trainer.devices=auto", "trainer.num_nodes=auto", "debug=fast")
    tasks = [job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in (0, 1)]
    with started(*options, cwd=tmp_path, **tasks[0]) as first, started(*options, cwd=tmp_path, **tasks[1]) as second:
        output, errors = first.communicate(timeout=120)
        silent, _ = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), errors
    assert runs(tmp_path) == [run := tmp_path / "logs" / "debug" / "slurm-77.3"]
    assert (run / "train.rank1.log").is_file()
    assert ("test/acc" in output, silent) == (True, "")


def test_a_process_group_of_another_size_is_refused(tmp_path: Path) -> None:
    done = train("trainer.devices=4", cwd=tmp_path, code=2, **TWO)
    line = "trainer.devices=4 trainer.num_nodes=1: slurm has started 2 process(es); use numbers whose product is 2"
    assert done.stderr.strip() == line


LOST = {"status": "failed", "reason": "rank 1 is lost", "has_lost_rank": True}
REQUEUED, LEFT = "requeue 7\n", ""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of the calls of `scontrol` in job 7, which runs. It refuses while there is a file `no`."""
    calls = tmp_path / "calls"
    calls.touch()
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\n[ -f no ] && {{ echo no >&2; exit 1; }}\necho "$@" >> {calls}\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(tmp_path)
    return calls


@pytest.mark.slow
def test_slurm_s_warning_saves_and_requeues_and_the_run_goes_on(calls: Path, tmp_path: Path) -> None:
    """SIGUSR1 to rank one, in a job of one task; then resume=RUN_DIR."""
    options = ("trainer.devices=2", "trainer.max_epochs=2", "model=mlp", "test=false", "hydra.run.dir=run")
    fault = "+callbacks.fault={_target_:faults.Fault,rank:1,how:SIGUSR1,batch:5}"
    done = train(*options, fault, cwd=tmp_path, code=75, SLURM_JOB_ID="7", SLURM_NTASKS="1")
    said = status(tmp_path / "run")
    assert (said["status"], said["reason"], said["slurm_job"]) == ("preempted", "preempted by SIGUSR1", "7")
    assert calls.read_text() == REQUEUED
    assert f"The run was preempted by SIGUSR1. Continue it: python {ROOT}/train.py resume=run" in done.stderr
    assert "SLURM job 7 is requeued" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    train("resume=run", cwd=tmp_path, code=0)
    assert status(tmp_path / "run")["status"] == "finished"


def after(run: Path, code: int, *overrides: str, **said: Any) -> tuple[str, str | None]:
    """Return how a run stands whose status was `said` when srun ended."""
    write_json(save_run(run) / "status.json", {"slurm_job": "7", "slurm_restarts": 0} | said)
    main(code, 2, [*overrides, f"hydra.run.dir={run}"])
    return status(run)["status"], status(run)["reason"]


@pytest.mark.parametrize(
    ("said", "code", "done", "stands"),
    [
        ({"status": "running"}, 137, REQUEUED, ("preempted", "srun has ended with code 137 and its ranks without a word")),
        (LOST, 1, REQUEUED, ("preempted", "rank 1 is lost")),
        ({"status": "failed", "reason": "rank 0: ValueError"}, 1, LEFT, ("failed", "rank 0: ValueError")),
        ({"status": "preempted", "reason": "preempted by SIGTERM"}, 75, LEFT, ("preempted", "preempted by SIGTERM")),
    ],
)
def test_a_lost_rank_is_a_requeue(
    said: dict[str, Any], code: int, done: str, stands: object, calls: Path, tmp_path: Path
) -> None:
    assert after(tmp_path / "run", code, "trainer.devices=2", **{"reason": None} | said) == stands
    assert calls.read_text() == done


def test_a_requeue_that_has_failed_often_or_that_slurm_refuses_is_none(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no").touch()
    assert after(tmp_path / "run", 1, **LOST) == ("failed", "rank 1 is lost; the job was not requeued: scontrol: no")
    (tmp_path / "no").unlink()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert after(tmp_path / "run", 1, **LOST | {"slurm_restarts": 2}) == ("failed", "rank 1 is lost")
    assert calls.read_text() == LEFT


def test_only_the_warning_before_a_time_limit_requeues(calls: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, 0):
        assert queue().requeue_when_warned(number, True) is None
    said = "SLURM job 7 was not requeued: it would begin anew, in another directory; give hydra.run.dir"
    assert queue().requeue_when_warned(signal.SIGUSR1, False) == said
    assert calls.read_text() == LEFT
    assert queue().requeue_when_warned(signal.SIGUSR1, True) == "SLURM job 7 is requeued"
    assert calls.read_text() == REQUEUED
