"""Tables of a sweep's jobs: on the terminal, with means over seeds and folds, and results.csv."""

import csv
import io
import itertools
import re
import statistics
import sys
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
    WAITING,
    read_computed_config,
    read_progress,
    repetition,
    varying,
)
from lockstep.sweeps.sweep_jobs import Job, SweepJobs

UNLIMITED = 100_000  # columns of what is printed to no terminal
_STYLES = {RUNNING: "cyan", FAILED: "bold red", INTERRUPTED: "yellow", FINISHED: "green", WAITING: "dim"}
_LONGEST = 80  # characters of a reason


def queue() -> Any:
    """Return the module of jobs that go on without the sweep's process.

    It has two functions: show_state(sweep_jobs) asks the queue how its jobs stand, and writes nothing; cancel(sweep_jobs) takes
    them out of the queue, and returns how many they were. Both raise ConfigError.
    """
    return get_object("lockstep.slurm.launcher")


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

    def show(self, sweep_jobs: SweepJobs) -> None:
        if not sys.stdout.isatty():
            self._print_changes(sweep_jobs)
        elif time.monotonic() > self._due:
            self._due = time.monotonic() + 1
            if self._live is None:
                self._live = Live(console=Console(), auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(layout(sweep_jobs, self._live.console.height), refresh=True)

    def close(self) -> None:
        """Take the table off the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print_changes(self, sweep_jobs: SweepJobs) -> None:
        """Print a line for each begun job whose state or attempt is another one."""
        for key, job in sweep_jobs.jobs.items():
            if not job.attempt or self._known.get(key) == (job.status, job.attempt):
                continue
            self._known[key] = (job.status, job.attempt)
            ended = sum(status in (FINISHED, FAILED) for status, _ in self._known.values())
            place = f"{ended} of {sweep_jobs.total}  " if job.status in (FINISHED, FAILED) else ""
            metric = f"  {job.optimized_metric} {job.metric:.6g}" if job.metric is not None else ""
            why = f"  {shorten(job.reason)}" if job.reason else ""
            print(f"{place}{job.directory.name}: {job.status}{metric}{why}", flush=True)


def print_table(sweep_jobs: SweepJobs) -> None:
    """Print it as wide as the terminal, or as wide as it is where there is none."""
    console = Console(width=None if sys.stdout.isatty() else UNLIMITED, highlight=False, markup=False)
    console.print(layout(sweep_jobs))
    if means := mean_rows(sweep_jobs):
        console.print(_table(means))


def layout(sweep_jobs: SweepJobs, height: int | None = None) -> Group:
    """Return table, reasons and summary. On a terminal of so many lines, running and failed jobs come first."""
    jobs = sweep_jobs.ranked
    lines = [*_reasons(jobs), summary(sweep_jobs)]
    if height is not None:
        jobs = sorted(jobs, key=lambda job: [*_STYLES].index(job.status))[: max(3, height - len(lines) - 7)]
    return Group(*([_table([_cells(job) for job in jobs])] if jobs else []), *map(Text, lines))


def _table(rows: Sequence[dict[str, str]]) -> Table:
    """Return a table with the columns that have a value."""
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    content = Table(**({} if sys.stdout.isatty() else {"box": None, "pad_edge": False}))
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
        "left": format_duration(left) if job.status == RUNNING else "",
    }


def mean_rows(sweep_jobs: SweepJobs) -> list[dict[str, str]]:
    """Return mean and standard deviation of the metric over seeds or folds, where there are several: the best mean first."""
    groups: dict[str, list[Job]] = {}
    for job in sweep_jobs.ranked:
        if job.metric is not None:
            groups.setdefault(repetition(read_computed_config(job.directory)), []).append(job)
    if all(len(group) < 2 for group in groups.values()):
        return []
    rows: list[tuple[str, float, dict[str, str]]] = []
    for group in groups.values():
        metrics = [job.metric for job in group if job.metric is not None]
        mean, first = statistics.mean(metrics), group[0]
        spread = f"{statistics.stdev(metrics):.3g}" if len(metrics) > 1 else ""
        label = " ".join(item for item in first.swept if item.partition("=")[0] not in REPEATS)
        row = {
            "overrides": label,
            "jobs": str(len(group)),
            "metric": first.optimized_metric,
            "mean": f"{mean:.5g}",
            "std": spread,
        }
        rows.append((first.optimized_metric, -mean if first.optimized_mode == "max" else mean, row))
    return [row for *_, row in sorted(rows, key=lambda row: row[:2])]


def _reasons(jobs: Sequence[Job]) -> list[str]:
    """Return why jobs have failed or were interrupted, and what others wait for; the same reason once."""
    numbers: dict[str, list[int]] = {}
    for job in sorted(jobs, key=lambda job: job.number):
        if job.reason is not None and job.status != FINISHED:
            numbers.setdefault(f"{job.status}: {shorten(job.reason)}", []).append(job.number)
    return [f"{join_first(some, 6)} {line}" for line, some in numbers.items()]


def shorten(reason: str) -> str:
    """Return the first part of a long reason: the whole is in the job's log and its status.json."""
    if len(reason) <= 60:
        return reason
    first = re.split(r"[,;]\s", reason)[0]
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 4]} ..."


def summary(sweep_jobs: SweepJobs) -> str:
    """Return one line: how many jobs are in which state, and the best of them."""
    counts, best = sweep_jobs.counts, sweep_jobs.best
    done = f"{counts[FINISHED]} of {sweep_jobs.total} job{'s' * (sweep_jobs.total != 1)} finished"
    states = [f"{counts[state]} {state}" for state in (RUNNING, WAITING, FAILED, INTERRUPTED) if counts[state]]
    words = "" if best is None else f" · best {best.optimized_metric} {best.metric:.5g} (job {best.number})"
    return ", ".join([done, *states]) + words


def write_results(sweep_jobs: SweepJobs) -> None:
    """Write results.csv, a row for each job."""
    jobs = sweep_jobs.ranked
    swept = varying([job.overrides for job in jobs])
    results = [_result(job, swept) for job in jobs]
    rows = io.StringIO()
    writer = csv.DictWriter(rows, [*dict.fromkeys(itertools.chain(*results))], lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    replace_text(sweep_jobs.directory / "results.csv", rows.getvalue())


def _result(job: Job, swept: Sequence[str]) -> dict[str, Any]:
    values, record = {key: value for key, _, value in (item.partition("=") for item in job.overrides)}, job.record
    result = {"key": job.key, "directory": job.directory.name, "status": job.status}
    result |= {name: values.get(name) for name in swept} | {"metric": job.metric}
    result |= {name: record.get(name) for name in RECORDED}
    result |= {name: value for name, value in record.get("metrics", {}).items() if name not in result}  # lr, say
    return result | {"reason": job.reason and shorten(job.reason)}
