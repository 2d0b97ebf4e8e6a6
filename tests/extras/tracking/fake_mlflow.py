"""As much of MLflow as lockstep.extras.tracking.loggers asks for, in memory: where the library is not installed."""

import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest


class MlflowException(Exception):
    """Whatever a client can't do."""


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


class MlflowClient:
    """Its runs are kept by the address of the server, for the clients that come after it."""

    servers: dict[str, dict[str, Any]] = {}

    def __init__(self, uri: str) -> None:
        self._runs, self._experiments = (self.servers.setdefault(uri, {}).setdefault(of, {}) for of in ("runs", "experiments"))

    def get_experiment_by_name(self, name: str) -> Any:
        return self._experiments.get(name)

    def create_experiment(self, name: str) -> str:
        if name in self._experiments:
            raise MlflowException(f"{name} exists")
        self._experiments[name] = SimpleNamespace(experiment_id=str(len(self._experiments)), name=name)
        return self._experiments[name].experiment_id

    def create_run(self, experiment_id: str, tags: dict[str, str], run_name: str) -> Any:
        run_id = f"{len(self._runs):032x}"
        info = SimpleNamespace(run_id=run_id, run_name=run_name, status="RUNNING", experiment_id=experiment_id)
        self._runs[run_id] = SimpleNamespace(info=info, data=SimpleNamespace(tags=tags, params={}, metrics={}), history=[])
        return self._runs[run_id]

    def get_run(self, run_id: str) -> Any:
        return self._runs[run_id]

    def search_runs(self, experiment_ids: list[str], filter_string: str = "") -> list[Any]:
        found = [run for run in self._runs.values() if run.info.experiment_id in experiment_ids]
        if not filter_string:
            return found
        (tag, value) = re.fullmatch(r"tags\.`(.+)` = '(.+)'", filter_string).groups()
        return [run for run in found if run.data.tags.get(tag) == value]

    def get_metric_history(self, run_id: str, key: str) -> list[Metric]:
        return [point for point in self._runs[run_id].history if point.key == key]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        run = self._runs[run_id]
        assert len(metrics) <= 1000
        for param in params:
            if run.data.params.setdefault(param.key, param.value) != param.value:
                raise MlflowException("Changing param values is not allowed")
        run.history += metrics
        run.data.metrics |= {point.key: point.value for point in metrics}

    def update_run(self, run_id: str, status: str) -> None:
        self._runs[run_id].info.status = status

    def set_terminated(self, run_id: str, status: str) -> None:
        self._runs[run_id].info.status = status


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test: `import mlflow` finds this."""
    content = {
        "mlflow": {"MlflowClient": MlflowClient},
        "mlflow.entities": {"Metric": Metric, "Param": Param},
        "mlflow.exceptions": {"MlflowException": MlflowException},
        "mlflow.tracking": {},
        "mlflow.tracking.context": {},
        "mlflow.tracking.context.registry": {"resolve_tags": dict},
    }
    for name, values in content.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(MlflowClient, "servers", {})
