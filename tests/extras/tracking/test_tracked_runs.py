"""Trainings of two processes, killed and resumed, with the trackers themselves; skipped where these are not installed."""

import json
from pathlib import Path

import pytest
from commands import train
from in_process import logged
from tracked import mlflow_points, wandb_rows

from lockstep.runs.saved import read_run_id

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of the libraries, among themselves

OPTIONS = (
    "trainer.devices=2",
    "trainer.max_epochs=2",
    "datamodule.batch_size=80",
    "model=mlp",
    "guards.checkpoint.every_n_steps=3",
    "trainer.log_every_n_steps=1",
    "callbacks.pictures=null",
    "hydra.run.dir=run",
)
FAULT = "+callbacks.fault={_target_:faults.Fault,rank:0,how:kill,batch:5,once:true}"  # of the process that writes


def killed_and_resumed(folder: Path, *options: str, **env: str) -> Path:
    """Rank zero is killed two steps after a checkpoint."""
    done = train(*OPTIONS, *options, FAULT, cwd=folder, **env)
    assert done.returncode == 1, done.stderr
    assert "rank 0 was killed by SIGKILL" in done.stderr
    done = train("resume=run", cwd=folder, **env)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_a_killed_run_goes_on_as_one_run_of_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install -e '.[mlflow]'")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = killed_and_resumed(tmp_path, "logger=[csv,mlflow]", MLFLOW_TRACKING_URI=uri)
    result, points = mlflow_points(uri, "digits_mlp")
    values = {(step, name): value for step, name, value in points}
    expected = {point: float(value) for point, value in logged(run).items()}
    assert {point: values.get(point) for point in expected} == pytest.approx(expected)
    metrics = json.loads((run / "metrics.json").read_text())["metrics"]
    assert {name: result.data.metrics[name] for name in metrics} == pytest.approx(metrics)
    assert (result.info.status, result.info.run_name, result.data.params["model"]) == ("FINISHED", "run", "mlp")


def test_a_killed_run_goes_on_as_one_run_of_w_and_b(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="W&B is not installed: pip install -e '.[wandb]'")
    run = killed_and_resumed(tmp_path, "logger=[csv,wandb]", "logger.wandb.offline=true")
    points = {(row["trainer/global_step"], name): value for row in wandb_rows(run) for name, value in row.items()}
    expected = {point: float(value) for point, value in logged(run).items() if point in points}
    assert {point: points[point] for point in expected} == pytest.approx(expected)
    assert len(expected) > 10
    lives = [*run.glob("wandb/offline-run-*")]  # one for each: no rank but zero has any
    assert len(lives) == 2
    assert {path.name.rpartition("-")[2] for path in lives} == {read_run_id(run)}
