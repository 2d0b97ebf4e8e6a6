"""One run is one run on a tracking server, however often it is broken off. Skipped where the libraries are not installed."""
# pyright: reportMissingImports=false
# (either library may be absent)

from pathlib import Path
from typing import Any

import pytest
from saved_run import save_run

from lockstep.runs.saved import read_run_id
from lockstep.tracking import MLFlowLogger, WandbLogger

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, among themselves


def test_a_run_goes_on_as_the_same_run_of_mlflow_and_without_a_server_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install -e '.[mlflow]'")
    run, uri = save_run(tmp_path / "run"), f"sqlite:///{tmp_path}/mlflow.db"
    client = mlflow.MlflowClient(uri)

    def logger() -> MLFlowLogger:
        return MLFlowLogger(run_dir=str(run), tracking_uri=uri, experiment_name="digits")

    def recorded() -> Any:
        (only,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
        return only

    def refuse(*_: Any, **__: Any) -> None:
        raise mlflow.exceptions.MlflowException("Connection\nrefused")

    first = logger()
    first.log_metrics({"loss": 0.0}, 0)
    with monkeypatch.context() as silence:
        silence.setattr("mlflow.MlflowClient.log_batch", refuse)
        first.log_metrics({"loss": 1.0}, 1)
        first.log_metrics({"loss": 2.0}, 2)
    said = [message for name, _, message in caplog.record_tuples if name == "lockstep.tracking"]
    assert said == [f"MLflow at {uri} has failed; the run goes on without it: Connection refused"]
    first.log_result({"model": "mlp", "trainer.max_epochs": 2}, {"loss": 4.0}, 4)
    assert recorded().info.status == "FINISHED"
    logger().log_result({"model": "mlp", "trainer.max_epochs": 4, "seed": 0}, {"loss": 8.0}, 8)
    # MLflow keeps the first value of a parameter, and refuses another
    assert recorded().data.params == {"model": "mlp", "trainer.max_epochs": "2", "seed": "0"}
    points = client.get_metric_history(recorded().info.run_id, "loss")
    assert sorted((point.step, point.value) for point in points) == [(0, 0.0), (4, 4.0), (8, 8.0)]


def test_a_run_of_w_and_b_goes_on_as_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="W&B is not installed: pip install -e '.[wandb]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = save_run(tmp_path / "sweep" / "seed=0")
    (tmp_path / "sweep" / "multirun.yaml").touch()
    for steps in (range(4), range(4, 7)):
        one = WandbLogger(run_dir=str(run), project="digits", offline=True)
        for step in steps:
            one.log_metrics({"loss": step / 2}, step)
        assert (one.experiment.id, one.experiment.name, one.experiment.group) == (read_run_id(run), "seed=0", "sweep")
        one.finalize("failed")
        wandb.teardown()
