"""The table of a sweep's jobs, by rich: of its process while it runs and when it ends, of `sweep.py status` and `watch`."""

import re
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from lockstep.console import first_of
from lockstep.sweeps.states import FAILED, FINISHED, INTERRUPTED, RUNNING, UNKNOWN, WAITING
from lockstep.sweeps.view import JobView, SweepView

COLUMNS = ("job", "overrides", "devices", "state", "epoch", "step", "done", "metric", "samples/s", "time", "left")
_DISPENSABLE = ("devices", "step", "samples/s", "time", "epoch", "left", "done")  # the first first, where a terminal is narrow
_STYLES = {RUNNING: "cyan", FINISHED: "green", FAILED: "bold red", INTERRUPTED: "yellow", WAITING: "dim", UNKNOWN: "yellow"}
_PRIORITY = (RUNNING, FAILED, INTERRUPTED, FINISHED, WAITING, UNKNOWN)  # where there are more jobs than lines
_READABLE = 16  # characters of the overrides that a column less is worth
_REASONS = 5  # lines
_UNLIMITED = 100_000  # columns of what is no terminal


class LiveTable:
    """A table that is drawn again in its place on a terminal; elsewhere a line whenever a job changes its state."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._due = 0.0
        self._known: dict[str, tuple[str, int]] = {}

    def show(self, view: SweepView, note: str = "") -> None:
        if not sys.stdout.isatty():
            self._print_changes(view, note)
        elif time.monotonic() > self._due:
            self._due = time.monotonic() + 1
            self._draw(view, note)

    def close(self) -> None:
        """Takes the table off the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self, view: SweepView, note: str) -> None:
        if self._live is None:
            self._live = Live(console=Console(), auto_refresh=False, transient=True)
            self._live.start()
        console = self._live.console
        self._live.update(layout(view, note, console.width, console.height), refresh=True)

    def _print_changes(self, view: SweepView, note: str) -> None:
        """A line for each begun job whose state or number of attempts is another one; the note comes before the first."""
        states = {key: (job["status"], len(job["attempts"])) for key, job in view.manifest.jobs.items() if job["attempts"]}
        changed = [key for key, state in states.items() if self._known.get(key) != state]
        if not changed:
            return
        if note and not self._known:
            print(note, flush=True)
        self._known |= states
        jobs = [job for job in view.jobs if job.key in changed]
        ended = view.counts[FINISHED] + view.counts[FAILED] - sum(job.status in (FINISHED, FAILED) for job in jobs)
        for job in jobs:
            ended += job.status in (FINISHED, FAILED)
            place = f"{ended} of {view.total}  " if job.status in (FINISHED, FAILED) else ""
            metric = f"  {job.entry['optimized_metric']} {job.metric:.6g}" if job.status == FINISHED else ""
            why = f"  {shorten(job.entry['reason'])}" if job.entry["reason"] else ""
            print(f"{place}{job.entry['directory']}: {job.status}{metric}{why}", flush=True)


def print_table(view: SweepView, note: str = "") -> None:
    """As wide as the terminal, or as wide as it is where there is none."""
    console = Console() if sys.stdout.isatty() else Console(width=_UNLIMITED)
    console.print(layout(view, note, console.width))


def layout(view: SweepView, note: str = "", width: int = 80, height: int | None = None) -> Group:
    """Table, reasons and summary within so many columns, and lines; the most important of the rows where they are too many."""
    reasons = _reasons(view.jobs)
    room = len(view.jobs) if height is None else max(3, height - len(reasons) - 7 - len(note) // width)
    ranked = sorted(view.jobs, key=lambda job: _PRIORITY.index(job.status))
    keys = {job.key for job in (ranked[: room - 1] if len(ranked) > room else ranked)}
    shown = [job for job in view.jobs if job.key in keys]
    left_out = Counter(job.status for job in view.jobs if job.key not in keys)
    more = [f"and {', '.join(f'{number} {status}' for status, number in left_out.items())}"] if left_out else []
    lines = [*more, *reasons, summary(view), *([note] if note else [])]
    texts = [Text(line, style="dim" if line in more else "", overflow="ellipsis", no_wrap=line in reasons) for line in lines]
    return Group(*([_table(shown, width)] if shown else []), *texts)


def _table(jobs: Sequence[JobView], width: int) -> Table:
    """The columns that fit, with the overrides as short as they have to be."""
    rows = [_cells(job, overrides) for job, overrides in zip(jobs, short_overrides(jobs), strict=True)]
    names = [name for name in COLUMNS if any(row[name] for row in rows) or name in ("job", "overrides", "state")]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}

    def room() -> int:
        """What the other columns, each with a border and two blanks, leave for the overrides."""
        return width - sum(widths[name] + 3 for name in names if name != "overrides") - 4

    for name in _DISPENSABLE:
        if room() < min(widths["overrides"], _READABLE) and name in names:
            names.remove(name)
    limit = {"overrides": max(4, room())}
    columns = [
        Column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            max_width=limit.get(name),
            justify="left" if name in ("overrides", "state") else "right",
        )
        for name in names
    ]
    is_plain = width == _UNLIMITED
    table = Table(*columns, **({"box": None, "pad_edge": False} if is_plain else {}))
    for row in rows:
        table.add_row(*(Text(row[name], style=_STYLES[row["state"]] if name == "state" else "") for name in names))
    return table


def _cells(job: JobView, overrides: str) -> dict[str, str]:
    rate = job.record.get("samples_per_second", job.progress.get("samples_per_second"))
    epoch, epochs, step, share = (job.progress.get(name) for name in ("epoch", "epochs", "step", "share"))
    return {
        "job": str(job.number),
        "overrides": overrides,
        "devices": str(job.entry["devices"]),
        "state": job.status,
        "epoch": "" if epoch is None else f"{epoch}/{epochs}" if epochs is not None and epochs > 0 else str(epoch),
        "step": "" if step is None else str(step),
        "done": "" if share is None or job.status == FINISHED else f"{share:.0%}",
        "metric": "" if job.metric is None else f"{job.metric:.5g}",
        "samples/s": "" if rate is None else f"{rate:,.0f}",
        "time": format_duration(job.seconds),
        "left": format_duration(job.left),
    }


def _reasons(jobs: Sequence[JobView]) -> list[str]:
    """Why jobs have failed or were interrupted, and what others wait for; the same reason once."""
    numbers: dict[str, list[int]] = {}
    for job in sorted(jobs, key=lambda job: _PRIORITY.index(job.status)):
        if job.reason is not None and job.status != FINISHED:
            line = f"{'tried again' if job.status == RUNNING else job.status}: {shorten(job.reason)}"
            numbers.setdefault(line, []).append(job.number)
    lines = [f"{first_of(some, 6)} {line}" for line, some in numbers.items()]
    return lines[:_REASONS] + ([f"and {len(lines) - _REASONS} more reasons"] if len(lines) > _REASONS else [])


def shorten(reason: str) -> str:
    """A reason's first clause: all that a table has room for. The whole is in the job's log and its status.json."""
    return reason if len(reason) <= 60 else textwrap.shorten(re.split(r"[,;]\s", reason)[0], 80, placeholder=" ...")


def short_overrides(jobs: Sequence[JobView]) -> list[str]:
    """The overrides of each job with the last word of their keys, where that tells the keys apart."""
    parts = [[item.lstrip("+").partition("=") for item in job.overrides] for job in jobs]
    keys = {key for items in parts for key, _, _ in items}
    counts = Counter(key.rpartition(".")[2] for key in keys)
    names: Mapping[str, str] = {key: last if counts[last := key.rpartition(".")[2]] == 1 else key for key in keys}
    return [" ".join(f"{names[key]}={value}" for key, _, value in items) for items in parts]


def format_duration(seconds: float | None) -> str:
    """In the two largest units."""
    if seconds is None:
        return ""
    whole = round(seconds)
    for name, size, below, smaller in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // smaller} {below}"
    return f"{whole} s"


def summary(view: SweepView) -> str:
    """One line: how many jobs are in which state, the best of them, and when the sweep will have ended."""
    done = f"{view.counts[FINISHED]} of {view.total} job{'s' * (view.total != 1)} finished"
    states = [f"{view.counts[state]} {state}" for state in (RUNNING, WAITING, FAILED, INTERRUPTED) if view.counts[state]]
    parts = [", ".join([done, *states]) if view.jobs else "no jobs yet"]
    if (best := view.best) is not None:
        parts.append(f"best {best.entry['optimized_metric']} {best.metric:.5g} (job {best.number})")
    if view.left is not None:
        clock = "%H:%M" if view.left < 20 * 3600 else "%d %b %H:%M"
        at = time.strftime(clock, time.localtime(time.time() + view.left))
        parts.append(f"about {format_duration(view.left)} left, until {at}")
    return " · ".join(parts)
