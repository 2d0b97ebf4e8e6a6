"""`python train.py -m ...`: jobs that train, on several numbers of processes."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, python

from lockstep.sweeps.jobs import Job, SweepJobs

pytestmark = pytest.mark.slow
WITNESS = "+callbacks.witness={_target_:faults.Witness}"


def sweep(folder: Path, *overrides: str) -> Any:
    fixed = ("trainer.accelerator=cpu", "debug=fast", "hydra.sweep.dir=sweep")
    return python(ROOT / "train.py", "-m", *fixed, *overrides, cwd=folder, timeout=200)


def jobs(folder: Path) -> list[Job]:
    return list(SweepJobs(folder / "sweep").jobs.values())


def test_processes_and_rates_are_each_job_s_own_and_a_rank_that_dies_takes_its_job_alone(tmp_path: Path) -> None:
    fault = "+callbacks.fault={_target_:faults.Fault,rank:2,batch:0,how:raise}"
    done = sweep(tmp_path, "trainer.devices=4,2", "model.optimizer.lr=0.1,0.01", WITNESS, fault)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    *failed, first, second = jobs(tmp_path)
    assert [(job.status, job.reason) for job in failed] == [("failed", "rank 2: ArithmeticError: planted fault")] * 2
    for job, rate in ((first, 0.1), (second, 0.01)):
        folder = tmp_path / "sweep" / job.directory.name
        record = json.loads((folder / "metrics.json").read_text())
        assert (job.status, job.reason) == ("finished", "trainer.max_epochs=1")
        assert (record["world_size"], record["lr"], record["metrics"]["val/acc"]) == (2, rate, job.metric)
        for rank in range(2):
            world = json.loads((folder / f"seen.{rank}.json").read_text())["world"]
            assert (world["rank"], world["trainer"], world["group"]) == (rank, 2, 2)
    beside = {path.name for path in (tmp_path / "sweep").iterdir()} - {job.directory.name for job in jobs(tmp_path)}
    assert beside == {"lock", "multirun.yaml", "results.csv"}
    assert done.stdout.count(": finished  val/acc ") == 2
    assert "tensorboard --logdir" in done.stdout
