"""How the jobs of a sweep stand, for a person at a terminal, while it runs or afterwards."""

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

from lockstep.console import command_line, first_of
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.states import FAILED, FINISHED, INTERRUPTED, RUNNING, UNKNOWN, WAITING
from lockstep.sweeps.view import JobView, SweepView, Views, seen

COLUMNS = ("job", "overrides", "devices", "state", "epoch", "step", "done", "metric", "samples/s", "time", "left")
_DISPENSABLE = ("devices", "step", "samples/s", "time", "epoch", "left", "done")  # the first first, where a terminal is narrow
_STYLES = {RUNNING: "cyan", FINISHED: "green", FAILED: "bold red", INTERRUPTED: "yellow", WAITING: "dim", UNKNOWN: "yellow"}
ENDED = (FINISHED, FAILED)
_FIRST = (RUNNING, FAILED, INTERRUPTED, FINISHED, WAITING, UNKNOWN)  # where there are more jobs than lines
_READABLE = 16  # characters of the overrides that a column less is worth
_REASONS = 5  # lines


class LiveTable:
    """One live table on a terminal; elsewhere a line whenever a job changes its state."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._views, self._changes, self._screen, self._due = Views(), Changes(), Screen(), 0.0
        self._note = f"From any terminal: {command_line('scripts/sweep.py', 'watch', manifest.directory)}"
        self._has_begun = False

    def show(self) -> None:
        if not sys.stdout.isatty():
            self._say_changes()
        elif time.monotonic() > self._due:
            self._due = time.monotonic() + 1
            self._screen.show(seen(self.manifest, self._views), self._note)

    def close(self) -> None:
        """Takes the live table away; the last changes are said."""
        self._screen.close()
        if not sys.stdout.isatty():
            self._say_changes()

    def _say_changes(self) -> None:
        if changed := self._changes.of({key: (job["status"], len(job["attempts"])) for key, job in self.manifest.jobs.items()}):
            if not self._has_begun:
                print(self._note, flush=True)
            self._has_begun = True
            ended = sum(job["status"] in ENDED for job in self.manifest.jobs.values())
            say_each(self._views.of(self.manifest, changed), ended, total_of(seen(self.manifest, self._views)))


class Changes:
    """Which jobs stand otherwise than they did."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, int]] = {}

    def of(self, states: Mapping[str, tuple[str, int]]) -> list[str]:
        """By state and number of attempts; what has not begun is not told."""
        changed = [key for key, state in states.items() if state[1] and self._known.get(key) != state]
        self._known |= {key: states[key] for key in changed}
        return changed


def say_each(jobs: Sequence[JobView], ended: int = 0, total: int = 0) -> None:
    """A line for each; of a sweep in which now `ended` jobs of `total` have ended, also which of them each was."""
    before = ended - sum(job.status in ENDED for job in jobs)
    for job in jobs:
        before += job.status in ENDED
        place = f"{before} of {total}  " if total and job.status in ENDED else ""
        metric = "" if job.metric is None or job.status != FINISHED else f"  {job.metric_name} {job.metric:.6g}"
        why = f"  {clause(job.reason)}" if job.reason else ""
        print(f"{place}{job.directory}: {job.status}{metric}{why}", flush=True)


class Screen:
    """A table on a terminal, in the place of the one before."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def show(self, found: SweepView, note: str = "") -> None:
        if self._live is None:
            self._live = Live(console=Console(), auto_refresh=False, transient=True)
            self._live.start()
        console = self._live.console
        self._live.update(fitted(found, note, console.width, console.height), refresh=True)

    def end(self, found: SweepView, note: str = "") -> None:
        """What is left in its place is the whole of it."""
        self.close()
        out = Console()
        out.print(fitted(found, note, out.width))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def fitted(found: SweepView, note: str = "", width: int = 80, height: int | None = None) -> Group:
    """Table, reasons and summary within so many columns, and lines; the most important of the rows where they are too many."""
    reasons = _reasons(found.jobs)
    room = len(found.jobs) if height is None else max(3, height - len(reasons) - 7 - len(note) // width)
    ranked = sorted(found.jobs, key=lambda job: _FIRST.index(job.status))
    keys = {job.key for job in (ranked[: room - 1] if len(ranked) > room else ranked)}
    shown = [job for job in found.jobs if job.key in keys]
    left_out = Counter(job.status for job in found.jobs if job.key not in keys)
    more = [f"and {', '.join(f'{number} {status}' for status, number in left_out.items())}"] if left_out else []
    lines = [*more, *reasons, words_of(found), *([note] if note else [])]
    texts = [Text(line, style="dim" if line in more else "", overflow="ellipsis", no_wrap=line in reasons) for line in lines]
    return Group(*([_table(shown, width)] if shown else []), *texts)


def _table(jobs: Sequence[JobView], width: int) -> Table:
    """The columns that fit, and with the overrides as short as they have to be."""
    rows: list[dict[str, str]] = [dict(zip(COLUMNS, _cells(job), strict=True)) for job in jobs]
    wide = {name: max(len(name), *(len(row[name]) for row in rows)) for name in COLUMNS}
    names = [name for name in COLUMNS if any(row[name] for row in rows) or name in ("job", "overrides", "state")]

    def room() -> int:
        return width - sum(wide[name] + 3 for name in names if name != "overrides") - 4

    if room() < wide["overrides"]:
        for row, text in zip(rows, short(jobs).values(), strict=True):
            row["overrides"] = text
        wide["overrides"] = max(len("overrides"), *(len(row["overrides"]) for row in rows))
    for name in _DISPENSABLE:
        if room() >= min(wide["overrides"], _READABLE):
            break
        names = [other for other in names if other != name]
    content = Table(*(_column(name, room()) for name in names))
    for row in rows:
        style = _STYLES[row["state"]]
        content.add_row(*(Text(row[name], style=style if name == "state" else "") for name in names))
    return content


def _column(name: str, room: int) -> Column:
    if name == "overrides":
        return Column(name, no_wrap=True, overflow="ellipsis", max_width=max(4, room))
    return Column(name, no_wrap=True, justify="left" if name == "state" else "right")


def rows_of(jobs: Sequence[JobView]) -> list[tuple[str, ...]]:
    """A row of COLUMNS per job, with the reason of its state."""
    state = COLUMNS.index("state")
    cells = [(_cells(job), f": {clause(job.reason)}" if job.reason else "") for job in jobs]
    return [(*row[:state], row[state] + reason, *row[state + 1 :]) for row, reason in cells]


def _cells(job: JobView) -> tuple[str, ...]:
    done = "" if job.share is None or job.status == FINISHED else f"{job.share:.0%}"
    numbers = ("" if job.metric is None else f"{job.metric:.5g}", "" if job.rate is None else f"{job.rate:,.0f}")
    how_far = (job.epoch, "" if job.step is None else str(job.step), done)
    times = (span(job.seconds), span(job.left))
    return (str(job.number), " ".join(job.overrides), str(job.devices), job.status, *how_far, *numbers, *times)


def _reasons(jobs: Sequence[JobView]) -> list[str]:
    """Why jobs have failed or were interrupted, and what others wait for; the same reason once."""
    alike: dict[tuple[str, str], list[str]] = {}
    for job in sorted(jobs, key=lambda job: _FIRST.index(job.status)):
        reason = job.reason or (job.earlier if job.status == RUNNING else None)
        if reason is not None and job.status != FINISHED:
            alike.setdefault(("tried again" if job.status == RUNNING else job.status, reason), []).append(str(job.number))
    lines = [f"{first_of(numbers, 6)} {word}: {clause(reason)}" for (word, reason), numbers in alike.items()]
    return lines[:_REASONS] + ([f"and {len(lines) - _REASONS} more reasons"] if len(lines) > _REASONS else [])


def clause(reason: str) -> str:
    """A reason's first clause: all that a table has room for. The whole is in the job's log and its status.json."""
    return reason if len(reason) <= 60 else textwrap.shorten(re.split(r"[,;]\s", reason)[0], 80, placeholder=" ...")


def short(jobs: Sequence[JobView]) -> dict[str, str]:
    """By job its overrides with the last word of their keys, where that tells the keys apart."""
    parts = {job.key: [item.lstrip("+").partition("=") for item in job.overrides] for job in jobs}
    keys = {key for items in parts.values() for key, _, _ in items}
    often = Counter(key.rpartition(".")[2] for key in keys)
    words = {key: word if often[word := key.rpartition(".")[2]] == 1 else key for key in keys}
    return {job: " ".join(f"{words[key]}={value}" for key, _, value in items) for job, items in parts.items()}


def span(seconds: float | None) -> str:
    """In the two largest units."""
    if seconds is None:
        return ""
    whole = round(seconds)
    for name, size, below, smaller in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // smaller} {below}"
    return f"{whole} s"


def total_of(found: SweepView) -> int:
    """How many jobs there will be: of a search its trials."""
    return max(found.trials or 0, len(found.jobs))


def words_of(found: SweepView) -> str:
    """One line: how many jobs stand how, the best of them, and when the sweep will have ended."""
    counts, total = found.counts, total_of(found)
    done = f"{counts[FINISHED]} of {total} {'trial' if found.trials else 'job'}{'s' * (total != 1)} finished"
    states = [f"{counts[state]} {state}" for state in (RUNNING, WAITING, FAILED, INTERRUPTED) if counts[state]]
    parts = [", ".join([done, *states]) if found.jobs else "no jobs yet"]
    if (best := found.best) is not None:
        parts.append(f"best {best.metric_name} {best.metric:.5g} (job {best.number})")
    if found.left is not None:
        clock = "%H:%M" if found.left < 20 * 3600 else "%d %b %H:%M"
        at = time.strftime(clock, time.localtime(time.time() + found.left))
        parts.append(f"about {span(found.left)} left, until {at}")
    return " · ".join(parts)
