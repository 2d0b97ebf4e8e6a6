"""Loggers that write to a tracking server, MLflow or Weights & Biases: once, from rank zero, and on where the run goes on.

Neither server takes back what it was given. So a run that goes on from a checkpoint does not log again what it had logged
after that checkpoint, when it comes to the same steps anew.
"""
# pyright: reportMissingImports=false
# (either library may be absent)

import importlib.util
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers
from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lockstep.atomic_files import read_json, write_json
from lockstep.errors import config_error
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs.identity import run_id_of

log = logging.getLogger(__name__)

PAUSE = 60.0  # seconds until a server that did not answer is asked again: rank zero waits for it, and the others for rank zero
MOST = 1000  # metrics in one request: MLflow's limit
_STEP = "trainer/global_step"  # under which Lightning has W&B draw every metric
RUN, SWEEP, DIRECTORY = "lockstep.run", "lockstep.sweep", "lockstep.directory"  # tags of an MLflow run


def sweep_of(run_dir: Path) -> str | None:
    """The name of the sweep that a run is a job of; None of one that is no sweep's."""
    return run_dir.parent.name if (run_dir.parent / "manifest.json").is_file() else None


def _check_installed(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise config_error("logger", library, f"the library `{library}` is not installed: pip install -e '.[{library}]'")


class MLFlowLogger(Logger):
    """Each run of Lockstep is one MLflow run, found again by the id in run.json. (Lightning's logger begins another one at
    each start, and the run fails when its server does.)

    Points that the server does not take are kept, in memory and, from a checkpoint on, in RUN_DIR/mlflow_unsent.json. They are
    sent when it answers, in this life of the run or in the next.
    """

    def __init__(self, *, run_dir: str, tracking_uri: str, experiment_name: str, tags: dict[str, str] | None = None) -> None:
        _check_installed("mlflow")
        super().__init__()
        self._uri, self._name, self._tags = tracking_uri, experiment_name, tags or {}
        self._run_dir, self._file = Path(run_dir), Path(run_dir) / "mlflow_unsent.json"
        self._client: Any = None
        self._run_id: str | None = None
        self._sent: set[tuple[str, int]] = set()  # name and step, before this start
        self._latest: dict[str, tuple[int, float]] = {}  # by name, in this life
        # name, value, milliseconds since 1970 and step: the arguments of mlflow.entities.Metric
        kept = (read_json(self._file) or {}).get("points", [])
        self._unsent = [(name, math.nan if value is None else value, when, step) for name, value, when, step in kept]
        self._is_silent, self._ask_after = False, 0.0  # by time.monotonic

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> str | None:
        """MLflow's id of the run; None before the server has answered."""
        return self._run_id

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The mlflow.MlflowClient; its run is `version`."""
        self._send()
        return self._client

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        now = int(time.time() * 1000)
        named = {re.sub(r"[^\w/. :-]", "", name, flags=re.ASCII): float(value) for name, value in metrics.items()}
        new = {name: value for name, value in named.items() if self._latest.get(name) != (step or 0, value)}
        self._latest |= {name: (step or 0, value) for name, value in new.items()}
        self._unsent += [(name, value, now, step or 0) for name, value in new.items()]
        self._send()

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Those that are not there yet: MLflow keeps a parameter's first value."""
        from mlflow.entities import Param

        def tell() -> None:
            there = self._client.get_run(self._run_id).data.params
            new = [Param(name, str(value)) for name, value in dict(params).items() if name not in there]
            self._client.log_batch(self._run_id, params=new)

        self._ask(tell)

    @rank_zero_only
    def save(self) -> None:
        """Before each checkpoint: what was logged up to here is not logged anew after it."""
        if self._unsent:
            write_json(self._file, {"points": self._unsent})
        else:
            self._file.unlink(missing_ok=True)

    def log_result(self, params: Mapping[str, Any], metrics: Mapping[str, float], step: int) -> None:
        """What a run that has finished comes to."""
        self._ask_after = 0.0
        self.log_hyperparams(params)
        self.log_metrics(metrics, step)
        self._end("FINISHED")

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Called at the end of each stage too, which is not the run's."""
        if status != "success":
            self._end("KILLED" if STOP_SIGNALS.received else "FAILED")

    def _end(self, status: str) -> None:
        self._send()
        self._ask(lambda: self._client.set_terminated(self._run_id, status))
        self.save()

    def _send(self) -> None:
        from mlflow.entities import Metric

        def tell() -> None:
            while some := self._unsent[:MOST]:
                new = [Metric(*point) for point in some if (point[0], point[3]) not in self._sent]
                self._client.log_batch(self._run_id, metrics=new)
                del self._unsent[: len(some)]

        self._ask(tell)

    def _ask(self, question: Callable[[], None]) -> None:
        """Asks the server, unless it was silent a moment ago. That it is silent never ends a run."""
        from mlflow.exceptions import MlflowException

        if time.monotonic() < self._ask_after:
            return
        try:
            if self._run_id is None:
                self._open()
            question()
        except (MlflowException, OSError) as error:
            if not self._is_silent:
                reason = " ".join(str(error).split())
                log.warning(f"MLflow at {self._uri} does not answer; the run goes on, and its metrics are kept for it: {reason}")
            self._is_silent, self._ask_after = True, time.monotonic() + PAUSE
        else:
            if self._is_silent:
                log.info(f"MLflow at {self._uri} answers again, and has all metrics")
            self._is_silent = False

    def _open(self) -> None:
        """Begins the MLflow run, or goes on with it."""
        import mlflow
        from mlflow.tracking.context.registry import resolve_tags

        if self._client is None:
            for name, value in {"MAX_RETRIES": "2", "TIMEOUT": "10"}.items():  # MLflow's own amount to many minutes
                os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
            self._client = mlflow.MlflowClient(self._uri)
        experiment, run = self._experiment_id(), run_id_of(self._run_dir)
        found = self._client.search_runs([experiment], f"tags.`{RUN}` = '{run}'") if run else []
        if found:
            run_id, names = found[0].info.run_id, found[0].data.metrics
            self._sent = {(name, point.step) for name in names for point in self._client.get_metric_history(run_id, name)}
            self._client.update_run(run_id, status="RUNNING")
            self._run_id = run_id
            return
        own = {RUN: run, SWEEP: sweep_of(self._run_dir), DIRECTORY: str(self._run_dir)}
        tags = resolve_tags(self._tags | {key: value for key, value in own.items() if value is not None})
        self._run_id = self._client.create_run(experiment, tags=tags, run_name=self._run_dir.name).info.run_id

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        if (experiment := self._client.get_experiment_by_name(self._name)) is not None:
            return experiment.experiment_id
        try:
            return self._client.create_experiment(self._name)
        except MlflowException:  # another job of a sweep was first
            if (experiment := self._client.get_experiment_by_name(self._name)) is None:
                raise
            return experiment.experiment_id


class WandbLogger(loggers.WandbLogger):
    """Lightning's, for one run of W&B in all lives of a run: its id is the one in run.json, its group the sweep.

    W&B writes in a process of its own, whose last rows are lost when it is killed too, and offline it begins anew at each start.
    So the rows are in RUN_DIR/wandb/rows.jsonl first, and a run that goes on gives W&B those that it has not. Where W&B can't be
    reached the run goes on offline.
    """

    def __init__(self, *, run_dir: str, **settings: Any) -> None:
        _check_installed("wandb")
        run = Path(run_dir)
        own = {"id": run_id_of(run), "name": run.name, "group": sweep_of(run)}
        super().__init__(save_dir=run_dir, **(own | settings))
        self._file = run / "wandb" / "rows.jsonl"
        self._rows = _rows_of(self._file)
        self._known = {(name, row[_STEP]) for row in self._rows for name in row}
        self._is_open = False

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The wandb.Run."""
        if not self._is_open:
            self._is_open = True
            self._open()
        return super().experiment

    def _open(self) -> None:
        import wandb

        self._file.parent.mkdir(parents=True, exist_ok=True)  # else W&B goes to a temporary folder
        try:
            run: Any = super().experiment
        except wandb.Error as error:
            wandb.teardown()  # its service would hold on to the id, and has read the environment
            os.environ["WANDB_MODE"] = "offline"
            run = super().experiment
            reason = " ".join(str(error).split())
            log.warning(f"W&B can't be reached; the run goes on offline, for wandb sync {self._file.parent}/latest-run: {reason}")
        for row in self._rows[run.step :]:  # the number of the next row, 0 offline
            run.log(row)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        new = {name: float(value) for name, value in metrics.items() if (name, step) not in self._known}
        if new:
            run = self.experiment
            with self._file.open("a") as file:
                file.write(json.dumps(new | {_STEP: step}) + "\n")
            run.log(new | {_STEP: step})

    def log_result(self, params: Mapping[str, Any], metrics: Mapping[str, float], step: int) -> None:
        """What a run that has finished comes to."""
        self.log_hyperparams(dict(params))
        self.experiment.summary.update(dict(metrics))
        super().finalize("success")  # which may have a checkpoint to upload
        self.experiment.finish()  # W&B would do so when the interpreter ends, which a forked process does not

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Called at the end of each stage too, which is not the run's."""
        if status != "success" and self._is_open:
            if STOP_SIGNALS.received:
                self.experiment.mark_preempting()
            self.experiment.finish(exit_code=1)


def _rows_of(file: Path) -> list[dict[str, Any]]:
    """What was logged before; the last line may have been cut off."""
    lines = file.read_text().split("\n")[:-1] if file.is_file() else []
    return [json.loads(line) for line in lines]
