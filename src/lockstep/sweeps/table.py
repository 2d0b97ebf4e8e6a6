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
from lockstep.sweeps.jobs import FAILED, FINISHED, INTERRUPTED, RECORDED, REPEATS, RUNNING, WAITING, read_progress, varying
from lockstep.sweeps.sweep_jobs import Job, SweepJobs

log = logging.getLogger(__name__)
_COLUMNS = ("job", "overrides", "state", "done", "metric", "samples/s", "time", "left")
_NARROW = ("job", "overrides", "state", "done", "metric", "left")  # on a terminal of fewer than _WIDE columns
_WIDE = 110
UNLIMITED = 100_000  # columns of what is printed to no terminal
_STYLES = {RUNNING: "cyan", FAILED: "bold red", INTERRUPTED: "yellow", FINISHED: "green", WAITING: "dim"}
_REASONS = 5  # lines


def queue() -> Any:
    """Return the module of jobs that go on without the sweep's process.

    It has two functions: show_state(sweep_jobs) asks the queue how its jobs stand, and writes nothing; cancel(sweep_jobs) takes
    them out of the queue, and returns how many they were. Both raise ConfigError.
    """
    return get_object("lockstep.extras.slurm.launcher")


def look_at(directory: Path) -> SweepJobs:
    """Read a sweep, whose process may be another one or none. Raise ConfigError if the directory is no sweep's."""
    sweep_jobs = SweepJobs(directory)
    if not sweep_jobs.jobs and not sweep_jobs.is_running:
        raise config_error("SWEEP_DIR", directory, "names no jobs; use the directory of a sweep")
    if sweep_jobs.in_queue():
        queue().show_state(sweep_jobs)
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
            self._live.update(layout(sweep_jobs, note, self._live.console.width, self._live.console.height), refresh=True)

    def close(self) -> None:
        """Take the table off the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print_changes(self, sweep_jobs: SweepJobs, note: str) -> None:
        """Print a line for each begun job whose state or attempt is another one; the note comes before the first."""
        begun = {key: job for key, job in sweep_jobs.jobs.items() if job.attempt}
        for key, job in begun.items():
            if self._known.get(key) == (state := (job.status, job.attempt)):
                continue
            if note and not self._known:
                print(note, flush=True)
            self._known[key] = state
            ended = sum(status in (FINISHED, FAILED) for status, _ in self._known.values())
            place = f"{ended} of {sweep_jobs.total}  " if job.status in (FINISHED, FAILED) else ""
            metric = f"  {job.optimized_metric} {job.metric:.6g}" if job.metric is not None else ""
            why = f"  {shorten(job.reason)}" if job.reason else ""
            print(f"{place}{job.directory.name}: {job.status}{metric}{why}", flush=True)


def print_table(sweep_jobs: SweepJobs, note: str = "") -> None:
    """Print it as wide as the terminal, or as wide as it is where there is none."""
    console = Console(width=None if sys.stdout.isatty() else UNLIMITED, highlight=False, markup=False)
    console.print(layout(sweep_jobs, note, console.width))


def layout(sweep_jobs: SweepJobs, note: str = "", width: int = 80, height: int | None = None) -> Group:
    """Return table, reasons, summary and note. If there are more jobs than lines, running and failed ones come first."""
    jobs = sweep_jobs.ranked
    lines = [*_reasons(jobs), summary(sweep_jobs), *filter(None, [note])]
    room = len(jobs) if height is None else max(3, height - len(lines) - 7)
    if len(jobs) > room:
        lines.insert(0, f"and {len(jobs) - room} more jobs")
        jobs = sorted(jobs, key=lambda job: [*_STYLES].index(job.status))[:room]
    return Group(*([_table(jobs, width)] if jobs else []), *map(Text, lines))


def _table(jobs: Sequence[Job], width: int) -> Table:
    rows = [_cells(job) for job in jobs]
    names = [name for name in (_COLUMNS if width >= _WIDE else _NARROW) if any(row[name] for row in rows)]
    content = Table(**({"box": None, "pad_edge": False} if width == UNLIMITED else {}))
    for name in names:
        content.add_column(name, no_wrap=name != "overrides", justify="left" if name in ("overrides", "state") else "right")
    for row in rows:
        content.add_row(*(Text(row[name], style=_STYLES[row["state"]] if name == "state" else "") for name in names))
    return content


def _cells(job: Job) -> dict[str, str]:
    progress = read_progress(job.directory)
    known = progress | job.record
    rate, share, left = (known.get(name) for name in ("samples_per_second", "share", "seconds_left"))
    metric = progress.get("metrics", {}).get(job.optimized_metric) if job.metric is None else job.metric
    return {
        "job": str(job.number),
        "overrides": job.label,
        "state": job.status,
        "done": "" if share is None or job.status == FINISHED else f"{share:.0%}",
        "metric": "" if metric is None else f"{metric:.5g}",
        "samples/s": "" if rate is None else f"{rate:,.0f}",
        "time": format_duration(job.seconds),
        "left": format_duration(left) if job.status == RUNNING else "",
    }


def _reasons(jobs: Sequence[Job]) -> list[str]:
    """Return why jobs have failed or were interrupted, and what others wait for; the same reason once."""
    numbers: dict[str, list[int]] = {}
    for job in sorted(jobs, key=lambda job: job.number):
        if job.reason is not None and job.status != FINISHED:
            numbers.setdefault(f"{job.status}: {shorten(job.reason)}", []).append(job.number)
    lines = [f"{join_first(some, 6)} {line}" for line, some in numbers.items()]
    return lines[:_REASONS] + ([f"and {len(lines) - _REASONS} more reasons"] if len(lines) > _REASONS else [])


def shorten(reason: str) -> str:
    """Return the first part of a reason, with the names of files alone: the whole is in the job's log and its status.json."""
    if len(reason) <= 60:
        return reason
    return textwrap.shorten(re.sub(r"(?<![\w.:/])/\S+/", ".../", re.split(r"[,;]\s", reason)[0]), 80, placeholder=" ...")


def summary(sweep_jobs: SweepJobs) -> str:
    """Return one line: how many jobs are in which state, and the best of them."""
    counts, best = sweep_jobs.counts, sweep_jobs.best
    done = f"{counts[FINISHED]} of {sweep_jobs.total} job{'s' * (sweep_jobs.total != 1)} finished"
    states = [f"{counts[state]} {state}" for state in (RUNNING, WAITING, FAILED, INTERRUPTED) if counts[state]]
    words = "" if best is None else f" · best {best.optimized_metric} {best.metric:.5g} (job {best.number})"
    return ", ".join([done, *states]) + words


def write_results(sweep_jobs: SweepJobs) -> None:
    """Write results.csv, a row for each job, and results.md, the same with means over seeds or folds."""
    jobs = sweep_jobs.ranked
    swept = varying([job.overrides for job in jobs])
    results = [_result(job, swept) for job in jobs]
    names = [*dict.fromkeys(itertools.chain(*results))]
    tables = [_markdown(names[1:], results), *_repeats(jobs, results, [name for name in swept if name not in REPEATS])]
    rows = io.StringIO()
    writer = csv.DictWriter(rows, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    for name, text in (("results.csv", rows.getvalue()), ("results.md", "\n".join(tables))):
        try:
            replace_text(sweep_jobs.directory / name, text)
        except OSError as error:  # the sweep ends with its table all the same
            log.warning(f"{sweep_jobs.directory / name} can't be written ({error.strerror})")


def _result(job: Job, swept: Sequence[str]) -> dict[str, Any]:
    values, record = {key: value for key, _, value in (item.partition("=") for item in job.overrides)}, job.record
    result = {"key": job.key, "directory": job.directory.name, "status": job.status}
    result |= {name: values.get(name) for name in swept} | {"metric": job.metric}
    result |= {name: record.get(name) for name in RECORDED}
    result |= {name: value for name, value in record.get("metrics", {}).items() if name not in result}  # lr, say
    return result | {"reason": job.reason and shorten(job.reason)}


def _repeats(jobs: Sequence[Job], results: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Return mean and standard deviation of the metric over seeds or folds, where there are several: the best mean first."""
    groups: dict[str, list[tuple[Job, dict[str, Any]]]] = {}
    for job, result in zip(jobs, results, strict=True):
        if job.metric is not None:
            groups.setdefault(job.repetition, []).append((job, result))
    if all(len(group) < 2 for group in groups.values()):
        return []
    rows: list[tuple[str, float, dict[str, Any]]] = []
    for group in groups.values():
        (job, result), metrics = group[0], [one.metric for one, _ in group if one.metric is not None]
        mean, spread = statistics.mean(metrics), statistics.stdev(metrics) if len(metrics) > 1 else None
        sign = -1 if job.optimized_mode == "max" else 1
        rows.append(
            (job.optimized_metric, sign * mean, result | {"runs": len(group), "mean": mean, "standard deviation": spread})
        )
    best_first = [row for *_, row in sorted(rows, key=lambda row: row[:2])]
    return [_markdown([*names, "runs", "mean", "standard deviation"], best_first)]


def _markdown(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in (names, ["---"] * len(names), *cells))


def _cell(value: Any) -> str:
    """Return one line without the column's border."""
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
