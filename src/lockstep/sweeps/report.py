"""A sweep for people: the table while it runs, and what is written at its end."""

import csv
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from lockstep.atomic_files import read_json
from lockstep.console import aligned
from lockstep.sweeps.jobs import varying
from lockstep.sweeps.manifest import FINISHED, RUNNING, Manifest

COLUMNS = ("job", "overrides", "devices", "state", "epoch", "metric", "samples/s", "time", "expected end")
REPEATS = ("seed", "datamodule.fold")  # keys over which results are averaged
RECORDED = ("world_size", "global_batch_size", "lr", "samples_per_second", "train_time", "wall_time")


class LiveTable:
    """One live table on a terminal; elsewhere a line whenever a job changes its state."""

    def __init__(self, manifest: Manifest, directory: Path) -> None:
        self.manifest, self.directory = manifest, directory
        self._live: Live | None = None
        self._said: dict[str, str] = {}
        self._due = 0.0

    def show(self) -> None:
        if not sys.stdout.isatty():
            self._say_changes()
        elif time.monotonic() > self._due:
            self._due = time.monotonic() + 1
            if self._live is None:
                self._live = Live(console=Console(), auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(table(rows_of(self.manifest, self.directory)), refresh=True)

    def close(self) -> None:
        """Takes the live table away; the last changes are said."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif not sys.stdout.isatty():
            self._say_changes()

    def _say_changes(self) -> None:
        for key, job in self.manifest.jobs.items():
            state = f"{job['status']}{len(job['attempts'])}"
            if job["attempts"] and self._said.get(key) != state:
                self._said[key] = state
                metric = "" if job["metric"] is None else f"  {job['optimized_metric']} {job['metric']:.6g}"
                print(f"{job['directory']}: {job['status']}{metric}{'  ' + job['reason'] if job['reason'] else ''}", flush=True)


def rows_of(manifest: Manifest, directory: Path) -> list[tuple[str, ...]]:
    """A row of COLUMNS per job, as things stand."""
    keys = varying([job["overrides"] for job in manifest.jobs.values()])
    return [_row(job, directory / job["directory"], keys) for job in manifest.jobs.values()]


def _row(job: dict[str, Any], folder: Path, keys: Sequence[str]) -> tuple[str, ...]:
    progress = read_json(folder / "progress.json") or {}
    record = (read_json(folder / "metrics.json") or {}) if job["status"] == FINISHED else {}
    metric = job["metric"] if job["metric"] is not None else progress.get("metrics", {}).get(job["optimized_metric"])
    rate = record.get("samples_per_second", progress.get("samples_per_second"))
    spent, left = "", ""
    if job["attempts"]:
        began, ended = job["attempts"][-1]["started"], job["attempts"][-1]["ended"]
        seconds = (ended or time.time()) - began
        spent = f"{seconds:.0f} s"
        if job["status"] == RUNNING and progress and (progress["epochs"] or 0) > 0:
            remaining = (progress["epochs"] - progress["epoch"]) * progress["seconds_per_epoch"]
            left = time.strftime("%H:%M:%S", time.localtime(time.time() + remaining))
    shown = " ".join(override for override in job["overrides"] if override.partition("=")[0] in keys)
    state = f"{job['status']}: {job['reason']}" if job["reason"] else job["status"]
    epoch = f"{progress['epoch']}/{progress['epochs']}" if progress else ""
    numbers = ("" if metric is None else f"{metric:.5g}", "" if rate is None else f"{rate:,.0f}")
    return (str(job["number"]), shown, str(job["devices"]), state, epoch, *numbers, spent, left)


def table(rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS) -> Table:
    content = Table(*columns)
    for row in rows:
        content.add_row(*map(escape, row))  # a reason may look like markup
    return content


def show(rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS) -> None:
    """A table on a terminal, aligned plain text elsewhere."""
    if sys.stdout.isatty():
        Console().print(table(rows, columns))
        return
    print(aligned([columns, *rows]), flush=True)


def report(manifest: Manifest, directory: Path, keys: Sequence[str]) -> None:
    """Shows the jobs `keys` sorted by their metric, failures last, and writes results.csv and results.md of all jobs."""
    swept = varying([job["overrides"] for job in manifest.jobs.values()])
    results = [_result(key, job, directory, swept) for key, job in _ranked(manifest)]
    _write_csv(directory / "results.csv", results)
    lines = [*_markdown(results), *_repeats(results, [key for key in swept if key not in REPEATS])]
    (directory / "results.md").write_text("\n".join(lines) + "\n")
    shown = ("directory", "status", *swept, "metric", "world_size", "samples_per_second", "reason")
    rows = [tuple(_cell(result.get(name)) for name in shown) for result in results if result["key"] in keys]
    show(rows, shown)
    print(f"\n{directory}/results.csv\ntensorboard --logdir {shlex.quote(str(directory))}", flush=True)


def _ranked(manifest: Manifest) -> list[tuple[str, dict[str, Any]]]:
    """Best metric first; jobs without one at the end."""

    def rank(item: tuple[str, dict[str, Any]]) -> tuple[bool, float]:
        metric = item[1]["metric"]
        sign = -1 if item[1].get("optimized_mode") == "max" else 1
        return metric is None, 0.0 if metric is None else sign * metric

    return sorted(manifest.jobs.items(), key=rank)


def _result(key: str, job: dict[str, Any], directory: Path, swept: Sequence[str]) -> dict[str, Any]:
    record = (read_json(directory / job["directory"] / "metrics.json") or {}) if job["status"] == FINISHED else {}
    values = dict(override.lstrip("+").partition("=")[::2] for override in job["overrides"])
    result = {"key": key, "directory": job["directory"], "status": job["status"]}
    result |= {name: values.get(name.lstrip("+")) for name in swept} | {"metric": job["metric"]}
    result |= {name: record.get(name) for name in RECORDED} | record.get("metrics", {})
    return result | {"reason": job["reason"]}


def _write_csv(path: Path, results: Sequence[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for result in results for name in result))
    partial = path.with_name(f".{path.name}")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(results)
    partial.replace(path)


def _markdown(results: Sequence[dict[str, Any]]) -> list[str]:
    names = [name for name in dict.fromkeys(name for result in results for name in result) if name != "key"]
    rows = ["| " + " | ".join(_cell(result.get(name)).replace("|", "\\|") for name in names) + " |" for result in results]
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *rows]


def _repeats(results: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[str]:
    """Mean and standard deviation of the metric over seeds or folds, where there are several."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for result in results:
        if result["metric"] is not None:
            groups.setdefault(tuple(result[key] for key in keys), []).append(result["metric"])
    if all(len(metrics) < 2 for metrics in groups.values()):
        return []
    lines = ["", "| " + " | ".join([*keys, "runs", "mean", "standard deviation"]) + " |", "|" + "---|" * (len(keys) + 3)]
    for values, metrics in groups.items():
        spread = statistics.stdev(metrics) if len(metrics) > 1 else None
        numbers = (str(len(metrics)), _cell(statistics.mean(metrics)), _cell(spread))
        lines.append("| " + " | ".join([*map(_cell, values), *numbers]) + " |")
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
