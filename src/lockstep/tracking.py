"""Lightning's loggers for MLflow and Weights & Biases: a run of Lockstep is one run there, however often it is resumed."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lockstep.atomic_files import read_json, write_json
from lockstep.launchers.environment import is_rank_zero
from lockstep.runs.results import ResultLogger
from lockstep.runs.saved import read_run_id

log = logging.getLogger(__name__)


def _sweep(run_dir: Path) -> str | None:
    return run_dir.parent.name if (run_dir.parent / "multirun.yaml").is_file() else None


class MLFlowLogger(loggers.MLFlowLogger, ResultLogger):
    """Continue the MLflow run whose id is in the run's directory. A server that fails gets nothing more until the run ends."""

    def __init__(self, *, run_dir: str, tracking_uri: str, experiment_name: str, tags: dict[str, Any] | None = None) -> None:
        run, self._is_lost = Path(run_dir), False
        self._known = run / "mlflow.json"
        # Lightning makes a client in every rank, and that of a database would create its tables, all at once.
        address = tracking_uri if is_rank_zero() else "http://localhost"
        own = {"lockstep.sweep": _sweep(run) or "", "lockstep.directory": run_dir}
        run_id = (read_json(self._known) or {}).get("run_id")
        super().__init__(experiment_name, run.name, address, {**(tags or {}), **own}, run_id=run_id)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The mlflow.MlflowClient; its run is `version`."""
        if self._run_id is None:
            with suppress(Exception):  # it is there, or another job of a sweep creates it at the same time
                self._mlflow_client.create_experiment(self._experiment_name)
            _ = super().experiment
            write_json(self._known, {"run_id": self._run_id})
        return super().experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if not self._is_lost:
            with self._losing():
                super().log_metrics(metrics, step)

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Log those that are not there yet: MLflow stores a parameter's first value, and refuses another."""
        with self._losing():
            there = self.experiment.get_run(self._run_id).data.params
            super().log_hyperparams({name: value for name, value in dict(params).items() if name not in there})

    def log_result(self, params: Mapping[str, Any], metrics: Mapping[str, float], step: int) -> None:
        self._is_lost = False
        self.log_hyperparams(params)
        self.log_metrics(metrics, step)
        self.finalize("success")

    @rank_zero_only
    def finalize(self, status: str = "success") -> None:
        with self._losing():
            super().finalize(status)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._is_lost:
                reason = " ".join(str(error).split())
                log.warning(f"MLflow at {self._tracking_uri} has failed; the run goes on without it: {reason}")
            self._is_lost = True


class WandbLogger(loggers.WandbLogger, ResultLogger):
    """Continue the run of W&B that has the run's id; its group is the sweep."""

    def __init__(self, *, run_dir: str, **settings: Any) -> None:
        run = Path(run_dir)
        (run / "wandb").mkdir(parents=True, exist_ok=True)  # else W&B goes to a temporary folder
        own = {"id": read_run_id(run), "name": run.name, "group": _sweep(run), "resume": "allow", "save_dir": run_dir}
        super().__init__(**(own | settings))

    def log_result(self, params: Mapping[str, Any], metrics: Mapping[str, float], step: int) -> None:
        self.log_hyperparams(dict(params))
        self.experiment.summary.update(dict(metrics))
        super().finalize("success")  # which may have a checkpoint to upload
        self.experiment.finish()  # W&B would do so when the interpreter ends, which a forked process does not

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run of W&B if training has failed; the end of a stage is not the run's."""
        if status != "success" and self._experiment is not None:
            self.experiment.finish(exit_code=1)
