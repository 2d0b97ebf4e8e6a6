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


@pytest.fixture
def uri(tmp_path: Path) -> str:
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install -e '.[mlflow]'")
    return f"sqlite:///{tmp_path}/mlflow.db"


def logger(run: Path, uri: str) -> MLFlowLogger:
    return MLFlowLogger(run_dir=str(run), tracking_uri=uri, experiment_name="digits")


def recorded(uri: str) -> Any:
    """The only run of the experiment."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    return run


def history(uri: str, name: str) -> list[tuple[int, float]]:
    """Its points by step, with those that are there twice."""
    import mlflow

    points = mlflow.MlflowClient(uri).get_metric_history(recorded(uri).info.run_id, name)
    return sorted((point.step, point.value) for point in points)


def refuse(*_: Any, **__: Any) -> None:
    from mlflow.exceptions import MlflowException

    raise MlflowException("Connection\nrefused")


def test_what_a_finished_run_comes_to_is_there_and_a_prolonged_one_goes_on(tmp_path: Path, uri: str) -> None:
    run = save_run(tmp_path / "run")
    logger(run, uri).log_result({"model": "mlp", "trainer.max_epochs": 2}, {"val/acc": 0.5}, 10)
    assert recorded(uri).info.status == "FINISHED"
    assert recorded(uri).data.params == {"model": "mlp", "trainer.max_epochs": "2"}
    logger(run, uri).log_result({"model": "mlp", "trainer.max_epochs": 4, "seed": 0}, {"val/acc": 0.75}, 20)
    # MLflow keeps the first value of a parameter, and refuses another
    assert recorded(uri).data.params == {"model": "mlp", "trainer.max_epochs": "2", "seed": "0"}
    assert history(uri, "val/acc") == [(10, 0.5), (20, 0.75)]


def test_a_server_that_fails_ends_no_run_and_is_asked_again_at_its_end(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = logger(save_run(tmp_path / "run"), uri)
    one.log_metrics({"loss": 0.0}, 0)
    with monkeypatch.context() as silence:
        silence.setattr("mlflow.MlflowClient.log_batch", refuse)
        for step in (1, 2, 3):
            one.log_metrics({"loss": float(step)}, step)
    said = [message for name, _, message in caplog.record_tuples if name == "lockstep.tracking"]
    assert said == [f"MLflow at {uri} has failed; the run goes on without it: Connection refused"]
    one.log_result({"model": "mlp"}, {"loss": 4.0}, 4)
    assert history(uri, "loss") == [(0, 0.0), (4, 4.0)]
    assert recorded(uri).info.status == "FINISHED"


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
