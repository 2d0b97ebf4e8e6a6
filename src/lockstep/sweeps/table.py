"""Tables of a sweep's jobs: on the terminal, results.csv, and results.md, which has means over seeds and folds."""

import csv
import io
import itertools
import logging
import re
import statistics
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep.atomic_files import replace_text
from lockstep.console import format_duration, join_first
from lockstep.errors import config_error
from lockstep.sweeps.jobs import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RECORDED,
    REPEATS,
    RUNNING,
    UNKNOWN,
    WAITING,
    read_progress,
    varying,
)
from lockstep.sweeps.sweep_jobs import JobView, SweepJobs

log = logging.getLogger(__name__)
_COLUMNS = ("job", "overrides", "devices", "state", "epoch", "step", "done", "metric", "samples/s", "time", "left")
_NARROW = ("job", "overrides", "state", "done", "metric", "left")  # on a terminal of fewer than _WIDE columns
_WIDE = 110
UNLIMITED = 100_000  # columns of what is printed to no terminal
_STYLES = {RUNNING: "cyan", FAILED: "bold red", INTERRUPTED: "yellow", FINISHED: "green", WAITING: "dim", UNKNOWN: "yellow"}
_PRIORITY = [*_STYLES]  # where there are more jobs than lines
_REASONS = 5  # lines


def queues() -> list[Any]:
    """Return the modules of jobs that go on without the sweep's process.

    Each has two functions: show_state(sweep_jobs) asks the queue how its jobs stand, and writes nothing; cancel(sweep_jobs) takes
    them out of the queue, and returns how many they were. Both raise ConfigError.
    """
    return [get_object("lockstep.extras.slurm.launcher")]


def look_at(directory: Path) -> SweepJobs:
    """Read a sweep, whose process may be another one or none. Raise ConfigError if the directory is no sweep's."""
    sweep_jobs = SweepJobs(directory)
    if not sweep_jobs.jobs and not sweep_jobs.is_running:
        raise config_error("SWEEP_DIR", directory, "names no jobs; use the directory of a sweep")
    for queue in queues() if sweep_jobs.in_queue() else ():
        queue.show_state(sweep_jobs)
    return sweep_jobs


class LiveTable:
    """A table that is drawn again in its place on a terminal; elsewhere a line whenever a job changes its state."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._due = 0.0
        self._known: dict[str, tuple[str, int]] = {}

    def show(self, sweep_jobs: SweepJobs, note: str = "") -> None:
        if not sys.stdout.isatty():
            self._print_changes(sweep_jobs, note)
        elif time.monotonic() > self._due:
            self._due = time.monotonic() + 1
            if self._live is None:
                self._live = Live(console=Console(), auto_refresh=False, transient=True)
                self._live.start()
            console = self._live.console
            self._live.update(layout(sweep_jobs, note, console.width, console.height), refresh=True)

    def close(self) -> None:
        """Take the table off the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print_changes(self, sweep_jobs: SweepJobs, note: str) -> None:
        """Print a line for each begun job whose state or attempt is another one; the note comes before the first."""
        states = {key: (view.status, view.attempt) for key, view in sweep_jobs.jobs.items() if view.attempt}
        changed = [key for key, state in states.items() if self._known.get(key) != state]
        if changed and note and not self._known:
            print(note, flush=True)
        ended = sum(status in (FINISHED, FAILED) for key, (status, _) in self._known.items() if key not in changed)
        for view in map(sweep_jobs.jobs.__getitem__, changed):
            ended += (is_over := view.status in (FINISHED, FAILED))
            place = f"{ended} of {sweep_jobs.total}  " if is_over else ""
            metric = f"  {view.optimized_metric} {view.metric:.6g}" if view.metric is not None else ""
            why = f"  {shorten(view.reason)}" if view.reason else ""
            print(f"{place}{view.directory.name}: {view.status}{metric}{why}", flush=True)
        self._known |= states


def print_table(sweep_jobs: SweepJobs, note: str = "") -> None:
    """Print it as wide as the terminal, or as wide as it is where there is none."""
    console = Console(width=None if sys.stdout.isatty() else UNLIMITED, highlight=False, markup=False)
    console.print(layout(sweep_jobs, note, console.width))


def layout(sweep_jobs: SweepJobs, note: str = "", width: int = 80, height: int | None = None) -> Group:
    """Return table, reasons, summary and note. If there are more jobs than lines, the most important ones."""
    views = sweep_jobs.ranked
    lines = [*_reasons(views), summary(sweep_jobs), *filter(None, [note])]
    room = len(views) if height is None else max(3, height - len(lines) - 7)
    if len(views) > room:
        lines.insert(0, f"and {len(views) - room} more jobs")
        views = sorted(views, key=lambda view: _PRIORITY.index(view.status))[:room]
    return Group(*([_table(views, width)] if views else []), *map(Text, lines))


def _table(views: Sequence[JobView], width: int) -> Table:
    rows = [_cells(view) for view in views]
    names = [name for name in (_COLUMNS if width >= _WIDE else _NARROW) if any(row[name] for row in rows)]
    content = Table(**({"box": None, "pad_edge": False} if width == UNLIMITED else {}))
    for name in names:
        content.add_column(name, no_wrap=name != "overrides", justify="left" if name in ("overrides", "state") else "right")
    for row in rows:
        content.add_row(*(Text(row[name], style=_STYLES[row["state"]] if name == "state" else "") for name in names))
    return content


def _cells(view: JobView) -> dict[str, str]:
    progress = read_progress(view.directory)
    known = progress | view.record
    epoch, epochs, step, share = (known.get(name) for name in ("epoch", "epochs", "step", "share"))
    rate, left = known.get("samples_per_second"), known.get("seconds_left")
    metric = progress.get("metrics", {}).get(view.optimized_metric) if view.metric is None else view.metric
    return {
        "job": str(view.number),
        "overrides": view.label,
        "devices": str(view.devices),
        "state": view.status,
        "epoch": "" if epoch is None else f"{epoch}/{epochs}" if epochs is not None and epochs > 0 else str(epoch),
        "step": "" if step is None else str(step),
        "done": "" if share is None or view.status == FINISHED else f"{share:.0%}",
        "metric": "" if metric is None else f"{metric:.5g}",
        "samples/s": "" if rate is None else f"{rate:,.0f}",
        "time": format_duration(view.seconds),
        "left": format_duration(left) if view.status == RUNNING else "",
    }


def _reasons(views: Sequence[JobView]) -> list[str]:
    """Return why jobs have failed or were interrupted, and what others wait for; the same reason once."""
    numbers: dict[str, list[int]] = {}
    for view in sorted(views, key=lambda view: (_PRIORITY.index(view.status), view.number)):
        if view.reason is not None and view.status != FINISHED:
            numbers.setdefault(f"{view.status}: {shorten(view.reason)}", []).append(view.number)
    lines = [f"{join_first(some, 6)} {line}" for line, some in numbers.items()]
    return lines[:_REASONS] + ([f"and {len(lines) - _REASONS} more reasons"] if len(lines) > _REASONS else [])


def shorten(reason: str) -> str:
    """Return the first part of a reason, with the names of files alone: the whole is in the job's log and its status.json."""
    if len(reason) <= 60:
        return reason
    return textwrap.shorten(re.sub(r"(?<![\w.:/])/\S+/", ".../", re.split(r"[,;]\s", reason)[0]), 80, placeholder=" ...")


def summary(sweep_jobs: SweepJobs) -> str:
    """Return one line: how many jobs are in which state, and the best of them."""
    if not sweep_jobs.jobs:
        return "no jobs yet"
    counts, best = sweep_jobs.counts, sweep_jobs.best
    done = f"{counts[FINISHED]} of {sweep_jobs.total} job{'s' * (sweep_jobs.total != 1)} finished"
    states = [f"{counts[state]} {state}" for state in (RUNNING, WAITING, FAILED, INTERRUPTED) if counts[state]]
    words = "" if best is None else f" · best {best.optimized_metric} {best.metric:.5g} (job {best.number})"
    return ", ".join([done, *states]) + words


def write_results(sweep_jobs: SweepJobs) -> None:
    """Write results.csv, a row for each job, and results.md, the same with means over seeds or folds."""
    views = sweep_jobs.ranked
    swept = varying([view.overrides for view in views])
    results = [_result(view, swept) for view in views]
    names = [*dict.fromkeys(itertools.chain(*results))]
    tables = [_markdown(names[1:], results), *_repeats(views, results, [name for name in swept if name not in REPEATS])]
    rows = io.StringIO()
    writer = csv.DictWriter(rows, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    for name, text in (("results.csv", rows.getvalue()), ("results.md", "\n".join(tables))):
        try:
            replace_text(sweep_jobs.directory / name, text)
        except OSError as error:  # the sweep ends with its table all the same
            log.warning(f"{sweep_jobs.directory / name} can't be written ({error.strerror})")


def _result(view: JobView, swept: Sequence[str]) -> dict[str, Any]:
    values, record = {key: value for key, _, value in (item.partition("=") for item in view.overrides)}, view.record
    result = {"key": view.key, "directory": view.directory.name, "status": view.status}
    result |= {name: values.get(name) for name in swept} | {"metric": view.metric}
    result |= {name: record.get(name) for name in RECORDED}
    result |= {name: value for name, value in record.get("metrics", {}).items() if name not in result}  # lr, say
    return result | {"reason": view.reason and shorten(view.reason)}


def _repeats(views: Sequence[JobView], results: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Return mean and standard deviation of the metric over seeds or folds, where there are several: the best mean first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    signs = {view.repetition: (view.optimized_metric, -1 if view.optimized_mode == "max" else 1) for view in views}
    for view, result in zip(views, results, strict=True):
        if view.metric is not None:
            groups.setdefault(view.repetition, []).append(result)
    if all(len(group) < 2 for group in groups.values()):
        return []
    rows: list[tuple[str, float, dict[str, Any]]] = []
    for key, group in groups.items():
        metrics, (name, sign) = [result["metric"] for result in group], signs[key]
        mean, spread = statistics.mean(metrics), statistics.stdev(metrics) if len(metrics) > 1 else None
        rows.append((name, sign * mean, group[0] | {"runs": len(metrics), "mean": mean, "standard deviation": spread}))
    best_first = [row for *_, row in sorted(rows, key=lambda row: row[:2])]
    return [_markdown([*names, "runs", "mean", "standard deviation"], best_first)]


def _markdown(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in (names, ["---"] * len(names), *cells))


def _cell(value: Any) -> str:
    """Return one line without the column's border."""
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
