"""What the directory of a run says, read as far as it is asked for: a folder may hold thousands of runs."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from lockstep.atomic_files import read_json, read_regular
from lockstep.config.modes import mode_by_name
from lockstep.config.plan import rate_key
from lockstep.errors import config_error
from lockstep.extras.history.directories import run_directories
from lockstep.runs.record import actual_status
from lockstep.runs.saved import read_overrides
from lockstep.sweeps.job_directory import read_progress

RECORDED = ("lr", "devices", "num_nodes", "world_size", "global_batch_size", "seed", "samples_per_second", "git_commit")
_CONFIGURED = {"devices": "trainer.devices", "num_nodes": "trainer.num_nodes", "seed": "seed"}
_KILLED = "it was killed, or its machine went down: no process has it"
COLUMNS = ("run", "state", "metric", "devices", "lr", "duration", "started", "reason")  # of the table


@dataclass(frozen=True)
class RunRecord:
    """A run by its directory, and the name that the list gives it."""

    path: Path
    name: str

    @cached_property
    def status(self) -> dict[str, Any]:
        return read_json(self.path / "status.json") or {}

    @cached_property
    def result(self) -> dict[str, Any]:
        return read_json(self.path / "metrics.json") or {}

    @cached_property
    def progress(self) -> dict[str, Any]:
        """How far it has come, where it has no result."""
        return {} if self.result else read_progress(self.path)

    @cached_property
    def recorded(self) -> dict[str, Any]:
        """Returns what its result says, or else its config and how far it has come."""
        if self.result:
            return {name: self.result.get(name) for name in RECORDED}
        known = {name: self._configured(key) for name, key in _CONFIGURED.items()}
        known["samples_per_second"] = self.progress.get("samples_per_second")
        ranks, model = self.status.get("ranks"), self._configured("model")
        known["world_size"] = len(ranks) if isinstance(ranks, list) else None
        if self._configured("lr_scaling") == "none" and isinstance(model, dict) and (key := rate_key(model)) is not None:
            known["lr"] = select(model, key)
        return {name: known.get(name) for name in RECORDED}

    def _configured(self, key: str) -> Any:
        return select(_read_yaml(_block(self._config_text, key.partition(".")[0])), key)

    @cached_property
    def overrides(self) -> list[str]:
        return [str(item) for item in read_overrides(self.path)]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The composed config; empty where it can't be read. Interpolations are left as they are."""
        return _read_yaml(self._config_text)

    @cached_property
    def choices(self) -> dict[str, Any]:
        """The option of each config group."""
        block = _block(_read_text(self.path / ".hydra" / "hydra.yaml"), "choices", indent="    ")
        choices = _read_yaml(block).get("choices")
        return choices if isinstance(choices, dict) else {}

    @cached_property
    def _config_text(self) -> str:
        return _read_text(self.path / ".hydra" / "config.yaml")

    @property
    def metrics(self) -> dict[str, float | None]:
        """Those that are numbers; a run writes null for one that is not finite. Without a result they are the last ones."""
        metrics = (self.result or self.progress).get("metrics")
        values = metrics.items() if isinstance(metrics, dict) else ()
        return {name: value for name, value in values if value is None or _is_number(value)}

    @property
    def optimized_metric(self) -> str | None:
        name = self.result.get("optimized_metric") or self._configured("optimized_metric")
        return name if isinstance(name, str) else None

    @property
    def is_better_if_larger(self) -> bool:
        """Reads optimized_mode, which stands at the root of the config."""
        mode = _block(self._config_text, "optimized_mode").strip().removeprefix("optimized_mode: ")
        return (mode_by_name(self.optimized_metric) if "${" in mode else mode) == "max"

    @property
    def duration(self) -> float | None:
        """Seconds: of the run's last start, or from its first to the last word of it where it has not finished."""
        if isinstance(wall_time := self.result.get("wall_time"), int | float):
            return float(wall_time)
        try:
            begin, end = (datetime.fromisoformat(self.status[key]) for key in ("started", "updated"))
            return (end - begin).total_seconds()
        except (KeyError, TypeError, ValueError):
            return None

    def value(self, key: str) -> Any:
        """Returns the value of a column, metric, recorded fact, config group's option, or key of the config; None without any."""
        if key == "run":
            return self.name
        if key == "state":
            return actual_status(self.path)
        if key == "metric":
            return self.metrics.get(self.optimized_metric or "")
        if key == "duration":
            return self.duration
        if key == "started":
            return self.status.get(key)
        if key == "reason":
            return self.status.get(key) or (_KILLED if self.value("state") == "interrupted" else None)
        for values in (self.metrics, self.recorded):
            if values.get(key) is not None:
                return values[key]
        if "." not in key and key in self.choices:  # to read the options of a thousand runs takes a while
            return self.choices[key]
        return self._configured(key)

    def as_dict(self) -> dict[str, Any]:
        """What a notebook or another program wants of it."""
        own = {"path": str(self.path), "run": self.name, "state": self.value("state"), "reason": self.value("reason")}
        own |= {"started": self.status.get("started"), "duration": self.duration, "optimized_metric": self.optimized_metric}
        return own | self.recorded | {"overrides": self.overrides, "metrics": self.metrics}


def find_runs(folder: Path) -> list[RunRecord]:
    """All runs below the folder, those of sweeps too, the earliest first."""
    if not folder.is_dir():
        raise config_error("LOGS", folder, "is not a folder; accepted is one that has runs in it")
    runs = [RunRecord(path, str(path.relative_to(folder))) for path in run_directories(folder)]
    return sorted(runs, key=lambda run: (str(run.status.get("started", "")), run.name))


def where(runs: Iterable[RunRecord], conditions: Iterable[str]) -> list[RunRecord]:
    """The runs for which each KEY=VALUE holds."""
    pairs = [condition.partition("=") for condition in conditions]
    if wrong := next((key for key, equals, _ in pairs if not equals or not key), None):
        raise config_error("--where", wrong, "accepted is KEY=VALUE")
    return [run for run in runs if all(_is_equal(run.value(key), value) for key, _, value in pairs)]


def sort_runs(runs: list[RunRecord], key: str) -> list[RunRecord]:
    """Sorts by a column, a metric or a key; by the metric that chose the runs, the best first. Those without a value are last."""
    values = {run: run.value(key) for run in runs}
    having = [run for run in runs if values[run] is not None]
    if runs and not having:
        raise config_error("--sort", key, f"no run has it; accepted are {', '.join(COLUMNS)}, a metric or a key of the config")
    lacking = [run for run in runs if values[run] is None]
    is_number = all(isinstance(values[run], int | float) for run in having)
    descends = any(key in ("metric", run.optimized_metric) and run.is_better_if_larger for run in having)
    return [*sorted(having, key=lambda run: values[run] if is_number else str(values[run]), reverse=descends), *lacking]


def best_run(runs: list[RunRecord]) -> RunRecord:
    """Returns the best finished one by the metric that all of them were chosen by. Raises ConfigError where there is none, or
    there are several."""
    having = [run for run in runs if isinstance(run.value("metric"), int | float) and run.value("state") == "finished"]
    kinds = {(run.optimized_metric, run.is_better_if_larger) for run in having}
    if len(kinds) != 1:
        names = ", ".join(sorted(f"{name} ({'max' if is_max else 'min'})" for name, is_max in kinds)) or "none"
        accepted = "accepted are finished runs of one optimized_metric and one optimized_mode; --where chooses some"
        raise config_error("--best", names, accepted)
    return sort_runs(having, "metric")[0]


def select(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_equal(value: Any, text: str) -> bool:
    """Compares as text, or as numbers: 1e-3 is 0.001. A list equals [a,b], and each of its items."""
    if isinstance(value, list):
        items = text[1:-1].split(",") if text[:1] == "[" and text[-1:] == "]" else None
        if items is None:
            return any(_is_equal(item, text) for item in value)
        items = [item.strip() for item in items if item.strip()]
        return len(items) == len(value) and all(map(_is_equal, value, items))
    if value is None or isinstance(value, bool):
        return text.lower() == {None: "null", True: "true", False: "false"}[value]
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return str(value) == text


def _read_text(path: Path) -> str:
    try:
        return read_regular(path)
    except (OSError, ValueError):
        return ""


def _block(text: str, key: str, indent: str = "") -> str:
    """The lines of one key and what is below it: to read all of a config takes ten times as long."""
    block = re.search(rf"^{indent}{re.escape(key)}:.*\n(?:{indent}[ -].*\n|\n)*", text, re.MULTILINE)
    return block[0] if block else ""


def _read_yaml(text: str) -> dict[str, Any]:
    try:
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return {}
    return content if isinstance(content, dict) else {}
