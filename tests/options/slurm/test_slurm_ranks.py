"""Ranks that srun has started, and a run in a job of one task: what their environment says, without any SLURM."""

import json
import os
from pathlib import Path

import pytest
from commands import ROOT, runs, started, train

from lockstep.errors import ConfigError
from lockstep.launchers.environment import rank_in

SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NNODES": "2",
}
TWO = SRUN | {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1"}


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (  # the batch script is task 0 of 8 then, and would train alone
            {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "ENVIRONMENT": "BATCH"},
            "SLURM_NTASKS=8: inside sbatch, start it with `srun python train.py ...`",
        ),
        (
            {name: value for name, value in SRUN.items() if name != "SLURM_NTASKS_PER_NODE"},
            "SLURM_NTASKS=8: give --ntasks-per-node to srun or sbatch, which Lightning needs",
        ),
    ],
)
def test_an_environment_by_which_ranks_would_train_alone_is_refused(env: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        rank_in(env)
    assert str(refused.value).startswith(line)


@pytest.mark.slow
def test_slurm_starts_the_ranks(tmp_path: Path) -> None:
    job = TWO | {"SLURM_NODEID": "0", "SLURM_JOB_NAME": "train", "SLURM_JOB_NODELIST": "localhost"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    auto = ("trainer.devices=auto", "trainer.num_nodes=auto")
    options = (ROOT / "train.py", "trainer.accelerator=cpu", *auto, "debug=fast")
    tasks = [job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in (0, 1)]
    with started(*options, cwd=tmp_path, **tasks[0]) as first, started(*options, cwd=tmp_path, **tasks[1]) as second:
        output, errors = first.communicate(timeout=120)
        silent, _ = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), errors
    (run,) = runs(tmp_path)
    assert run == tmp_path / "logs" / "debug" / "slurm-77.3"
    assert (run / "train.rank1.log").is_file()
    assert "test/acc" in output
    assert silent == ""


def test_a_process_group_of_another_size_is_refused(tmp_path: Path) -> None:
    done = train("trainer.devices=4", cwd=tmp_path, **TWO | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert done.returncode == 2
    line = "trainer.devices=4 trainer.num_nodes=1: slurm has started 2 process(es); use numbers whose product is 2"
    assert done.stderr.strip() == line


@pytest.mark.slow
def test_slurm_s_warning_saves_and_requeues_and_the_run_goes_on(tmp_path: Path) -> None:
    """SIGUSR1 to rank one, in a job of one task; then resume=RUN_DIR."""
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    (tmp_path / "scontrol").chmod(0o755)
    job = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "1", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    options = ("trainer.devices=2", "trainer.max_epochs=2", "model=mlp", "test=false", "hydra.run.dir=run")
    done = train(*options, "+callbacks.fault={_target_:faults.Fault,rank:1,how:SIGUSR1,batch:5}", cwd=tmp_path, **job)
    run = tmp_path / "run"
    assert done.returncode == 75, done.stderr
    status = json.loads((run / "status.json").read_text())
    assert (status["status"], status["reason"], status["slurm_job"]) == ("preempted", "preempted by SIGUSR1", "77")
    assert (tmp_path / "calls").read_text() == "requeue 77\n"
    assert f"The run was preempted by SIGUSR1. Continue it: python {ROOT}/train.py resume=run" in done.stderr
    assert "SLURM job 77 is requeued" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    done = train("resume=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "status.json").read_text())["status"] == "finished"
