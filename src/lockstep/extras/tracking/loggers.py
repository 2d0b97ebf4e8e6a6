"""Lightning's loggers for MLflow and Weights & Biases: a run of Lockstep is one run there, however often it is resumed."""
# pyright: reportMissingImports=false
# (either library may be absent)

import importlib.util
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lockstep.errors import ConfigError, config_error
from lockstep.launchers.environment import is_rank_zero
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs.saved import read_run_id

log = logging.getLogger(__name__)
RUN, SWEEP, DIRECTORY = "lockstep.run", "lockstep.sweep", "lockstep.directory"  # tags of an MLflow run


def name_of_sweep(run_dir: Path) -> str | None:
    """Returns the name of the sweep that a run is a job of; None for a run that is no sweep's."""
    return run_dir.parent.name if (run_dir.parent / "multirun.yaml").is_file() else None


class MLFlowLogger(loggers.MLFlowLogger):
    """Goes on with the MLflow run that has the run's id as a tag, where there is one.

    The run is refused where the server can't be reached at its start. A server that fails later gets no more of it until
    the run ends.
    """

    def __init__(self, *, run_dir: str, tracking_uri: str, experiment_name: str, tags: dict[str, str] | None = None) -> None:
        _check_installed("mlflow")
        run = Path(run_dir)
        own = {RUN: read_run_id(run), SWEEP: name_of_sweep(run), DIRECTORY: run_dir}
        given = {name: value for name, value in own.items() if value is not None}
        for name, value in {"MAX_RETRIES": "2", "TIMEOUT": "10"}.items():  # MLflow's own amount to many minutes
            os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
        # Lightning makes a client in every rank, and that of a database would create its tables, all at once.
        address = tracking_uri if is_rank_zero() else "http://localhost"
        super().__init__(experiment_name, run.name, address, {**(tags or {}), **given})
        self._id, self._is_lost = own[RUN], False

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The mlflow.MlflowClient; its run is `version`."""
        if not self._initialized:
            self._open()
        return super().experiment

    def _open(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            experiment = self._experiment_of_name()
            runs = self._mlflow_client.search_runs([experiment], f"tags.`{RUN}` = '{self._id}'") if self._id else []
            if runs:
                self._run_id = runs[0].info.run_id
                self._mlflow_client.update_run(self._run_id, status="RUNNING")
        except (MlflowException, OSError) as error:
            raise _unreachable("logger.mlflow.tracking_uri", self._tracking_uri, error, "a server that answers") from error

    def _experiment_of_name(self) -> str:
        from mlflow.exceptions import MlflowException

        if (experiment := self._mlflow_client.get_experiment_by_name(self._experiment_name)) is not None:
            return experiment.experiment_id
        try:
            return self._mlflow_client.create_experiment(self._experiment_name)
        except MlflowException:  # another job of a sweep was first
            if (experiment := self._mlflow_client.get_experiment_by_name(self._experiment_name)) is None:
                raise
            return experiment.experiment_id

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if not self._is_lost:
            with self._losing():
                super().log_metrics(metrics, step)

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Logs those that are not there yet: MLflow keeps a parameter's first value, and refuses another."""
        with self._losing():
            there = self.experiment.get_run(self._run_id).data.params
            super().log_hyperparams({name: value for name, value in dict(params).items() if name not in there})

    def log_result(self, params: Mapping[str, Any], metrics: Mapping[str, float], step: int) -> None:
        """Logs what a run that has finished comes to."""
        self._is_lost = False
        self.log_hyperparams(params)
        self.log_metrics(metrics, step)
        self.finalize("success")

    @rank_zero_only
    def finalize(self, status: str = "success") -> None:
        with self._losing():
            super().finalize("KILLED" if status == "failed" and STOP_SIGNALS.received else status)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            if not self._is_lost:
                log.warning(f"MLflow at {self._tracking_uri} has failed; the run goes on without it: {_reason(error)}")
            self._is_lost = True


class WandbLogger(loggers.WandbLogger):
    """Goes on with the run of W&B that has the run's id; its group is the sweep."""

    def __init__(self, *, run_dir: str, **settings: Any) -> None:
        _check_installed("wandb")
        run = Path(run_dir)
        own = {"id": read_run_id(run), "name": run.name, "group": name_of_sweep(run), "resume": "allow"}
        super().__init__(save_dir=run_dir, **(own | settings))
        self._folder = run / "wandb"

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The wandb.Run."""
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)  # else W&B goes to a temporary folder
        try:
            return super().experiment
        except wandb.Error as error:
            raise _unreachable("logger.wandb.offline", "false", error, "true, for wandb sync later") from error

    def log_result(self, params: Mapping[str, Any], metrics: Mapping[str, float], step: int) -> None:
        """Logs what a run that has finished comes to."""
        self.log_hyperparams(dict(params))
        self.experiment.summary.update(dict(metrics))
        super().finalize("success")  # which may have a checkpoint to upload
        self.experiment.finish()  # W&B would do so when the interpreter ends, which a forked process does not

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Ends the run of W&B where training has failed; the end of a stage is not the run's."""
        if status != "success" and self._experiment is not None:
            if STOP_SIGNALS.received:
                self.experiment.mark_preempting()
            self.experiment.finish(exit_code=1)


def _check_installed(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise config_error("logger", library, f"the library `{library}` is not installed: pip install 'lockstep[{library}]'")


def _unreachable(key: str, value: str, error: Exception, accepted: str) -> ConfigError:
    return config_error(key, value, f"can't be reached ({_reason(error)}); accepted is {accepted}")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())
