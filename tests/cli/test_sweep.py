"""`python train.py -m ...`: jobs that train, on several numbers of processes."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, python

pytestmark = pytest.mark.slow
WITNESS = "+callbacks.witness={_target_:faults.Witness}"


def sweep(folder: Path, *overrides: str) -> Any:
    fixed = ("trainer.accelerator=cpu", "debug=fast", "hydra.sweep.dir=sweep")
    return python(ROOT / "train.py", "-m", *fixed, *overrides, cwd=folder, timeout=200)


def jobs(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "sweep" / "manifest.json").read_text())["jobs"].values())


def test_processes_and_rates_are_each_job_s_own(tmp_path: Path) -> None:
    done = sweep(tmp_path, "trainer.devices=2,1", "model.optimizer.lr=0.1,0.01", WITNESS)
    assert done.returncode == 0, done.stdout + done.stderr
    trained = []
    for job in jobs(tmp_path):
        folder = tmp_path / "sweep" / job["directory"]
        devices, rate = (float(override.partition("=")[2]) for override in job["overrides"][2:4])
        record = json.loads((folder / "metrics.json").read_text())
        assert (job["status"], record["world_size"], record["lr"]) == ("finished", devices, rate)
        assert job["metric"] == record["metrics"]["val/acc"]
        for rank in range(int(devices)):
            world = json.loads((folder / f"seen.{rank}.json").read_text())["world"]
            assert (world["rank"], world["trainer"], world["group"]) == (rank, devices, devices)
        trained.append((devices, rate))
    assert trained == [(2, 0.1), (2, 0.01), (1, 0.1), (1, 0.01)]
    beside = {path.name for path in (tmp_path / "sweep").iterdir()} - {job["directory"] for job in jobs(tmp_path)}
    assert beside == {"manifest.json", "lock", "multirun.yaml", "results.csv", "results.md"}
    assert done.stdout.count(": finished  val/acc ") == 4
    assert "tensorboard --logdir" in done.stdout


def test_a_rank_that_dies_does_not_take_the_sweep_with_it_in_any_order_of_devices(tmp_path: Path) -> None:
    done = sweep(tmp_path, "trainer.devices=3,1,2", "+callbacks.fault={_target_:faults.Fault,rank:2,batch:0,how:raise}")
    assert done.returncode == 1
    assert [(job["status"], job["reason"]) for job in jobs(tmp_path)] == [
        ("failed", "rank 2: ArithmeticError: planted fault"),
        ("finished", "trainer.max_epochs=1"),
        ("finished", "trainer.max_epochs=1"),
    ]
    records = [json.loads((tmp_path / "sweep" / job["directory"] / "metrics.json").read_text()) for job in jobs(tmp_path)[1:]]
    assert [record["world_size"] for record in records] == [1, 2]
    assert "Traceback" not in done.stdout + done.stderr
