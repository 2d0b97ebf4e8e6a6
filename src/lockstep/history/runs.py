"""Runs below a folder: listed, searched, sorted and compared by what their directories say."""

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.atomic_files import read_json
from lockstep.config.overrides import flat
from lockstep.errors import config_error
from lockstep.metrics import mode_by_name
from lockstep.runs.directory import run_directories
from lockstep.runs.record import actual_status
from lockstep.runs.saved import FILE, read_choices, read_overrides, read_yaml
from lockstep.sweeps.jobs import read_progress

COLUMNS = ("run", "state", "metric", "devices", "lr", "duration", "started", "reason")  # columns of the table
Differences = dict[str, tuple[Any, Any]]


class RunRecord:
    """A run as its directory says: .hydra/, status.json, and metrics.json or else progress.json.

    Args:
        path: the directory.
        name: the name that a list gives it.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.status = read_json(path / "status.json") or {}
        self.result = read_json(path / "metrics.json") or {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """The composed config, with its interpolations."""
        return read_yaml(self.path / FILE) or {}

    @cached_property
    def choices(self) -> dict[str, Any]:
        """The option of each config group."""
        return read_choices(self.path)

    @property
    def overrides(self) -> list[str]:
        return read_overrides(self.path)

    @cached_property
    def metrics(self) -> dict[str, float | None]:
        """The final metrics, or the last ones if there is no result. A run writes null for one that is not finite."""
        return (self.result or read_progress(self.path)).get("metrics") or {}

    @property
    def optimized_metric(self) -> str | None:
        return self.result.get("optimized_metric") or self.config.get("optimized_metric")

    @property
    def is_better_if_larger(self) -> bool:
        mode = str(self.config.get("optimized_mode"))
        return (mode_by_name(self.optimized_metric) if "${" in mode else mode) != "min"

    @property
    def facts(self) -> dict[str, Any]:
        """The entries of metrics.json beside the metrics."""
        return {name: value for name, value in self.result.items() if name != "metrics"}

    @cached_property
    def values(self) -> dict[str, Any]:
        """Columns, metrics, recorded facts, options of config groups, and keys of the config."""
        config = flat(self.config)
        state, reason = actual_status(self.path), self.status.get("reason")
        if state == "finished":  # a run that was killed after it had written metrics.json did not write status.json
            reason = reason or self.result.get("ended_by")
        known = {"run": self.name, "state": state, "metric": self.metrics.get(self.optimized_metric or ""), "reason": reason}
        known |= {"duration": self.result.get("wall_time"), "started": self.status.get("started")}
        return config | {"devices": config.get("trainer.devices")} | self.choices | self.facts | self.metrics | known

    def as_dict(self) -> dict[str, Any]:
        """Return what a notebook or another program needs of the run."""
        known = {name: self.values.get(name) for name in COLUMNS}
        return {"path": str(self.path), **known, **self.facts, "metrics": self.metrics}


def find_runs(folder: Path) -> list[RunRecord]:
    """Return all runs below the folder, those of sweeps too, the earliest first."""
    runs = [RunRecord(path, str(path.relative_to(folder))) for path in run_directories(folder)]
    return sorted(runs, key=lambda run: (str(run.status.get("started", "")), run.name))


def where(runs: Iterable[RunRecord], conditions: Iterable[str]) -> list[RunRecord]:
    """Return the runs for which each KEY=VALUE holds."""
    pairs = [condition.partition("=")[::2] for condition in conditions]
    return [run for run in runs if all(_is_equal(run.values.get(key), text) for key, text in pairs)]


def sort_runs(runs: list[RunRecord], key: str) -> list[RunRecord]:
    """Sort by a value; by the metric that chose the runs, the best first. Those without it are last."""
    having = [run for run in runs if run.values.get(key) is not None]
    if runs and not having:
        raise config_error("--sort", key, f"no run has it; choose one of {', '.join(COLUMNS)}, a metric or a key of the config")
    is_number = all(isinstance(run.values[key], int | float) for run in having)
    descends = any(key in ("metric", run.optimized_metric) and run.is_better_if_larger for run in having)
    best_first = sorted(having, key=lambda run: run.values[key] if is_number else str(run.values[key]), reverse=descends)
    return [*best_first, *(run for run in runs if run not in having)]


def best_run(runs: list[RunRecord]) -> RunRecord:
    """Return the best finished run by the metric that all of them were chosen by. Raises ConfigError if they have several."""
    having = [run for run in runs if run.values["metric"] is not None and run.values["state"] == "finished"]
    metrics = {str(run.optimized_metric) for run in having}
    if len(metrics) != 1:
        names = ", ".join(sorted(metrics)) or "none"
        raise config_error("--best", names, "is not one metric of finished runs; choose some by --where")
    return sort_runs(having, "metric")[0]


def differences(one: RunRecord, other: RunRecord) -> dict[str, Differences]:
    """Return for config, recorded facts and metrics the names whose values differ, with both values; None for none."""
    sections: list[dict[str, dict[str, Any]]] = []
    for run in (one, other):
        options = {f"{group}: option": option for group, option in run.choices.items()}
        config = flat(run.config) | options | {"run_dir": None}
        sections.append({"config": config, "recorded": flat(run.facts), "metrics": run.metrics})
    return {name: _unequal(sections[0][name], sections[1][name]) for name in sections[0]}


def _unequal(one: dict[str, Any], other: dict[str, Any]) -> Differences:
    return {name: (one.get(name), other.get(name)) for name in one | other if one.get(name) != other.get(name)}


def _is_equal(value: Any, text: str) -> bool:
    """Compare as numbers, 1e-3 is 0.001, else as text."""
    if value is None or isinstance(value, bool):
        return json.dumps(value) == text
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return str(value) == text
