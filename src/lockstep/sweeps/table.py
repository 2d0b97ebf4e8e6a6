"""The table of a sweep's jobs, by rich: of its process while it runs and when it ends, of `sweep.py status` and `watch`."""

import re
import sys
import textwrap
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep.console import UNLIMITED, format_duration, join_first, wide_console
from lockstep.sweeps.states import FAILED, FINISHED, INTERRUPTED, RUNNING, UNKNOWN, WAITING
from lockstep.sweeps.view import JobView, SweepView

_COLUMNS = ("job", "overrides", "devices", "state", "epoch", "step", "done", "metric", "samples/s", "time", "left")
_NARROW = ("job", "overrides", "state", "done", "metric", "left")  # on a terminal of fewer than _WIDE columns
_WIDE = 110
_STYLES = {RUNNING: "cyan", FAILED: "bold red", INTERRUPTED: "yellow", FINISHED: "green", WAITING: "dim", UNKNOWN: "yellow"}
_PRIORITY = [*_STYLES]  # where there are more jobs than lines
_REASONS = 5  # lines


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
            if self._live is None:
                self._live = Live(console=Console(), auto_refresh=False, transient=True)
                self._live.start()
            console = self._live.console
            self._live.update(layout(view, note, console.width, console.height), refresh=True)

    def close(self) -> None:
        """Takes the table off the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print_changes(self, view: SweepView, note: str) -> None:
        """A line for each begun job whose state or number of attempts is another one; the note comes before the first."""
        states = {key: (job["status"], len(job["attempts"])) for key, job in view.sweep_jobs.jobs.items() if job["attempts"]}
        changed = [key for key, state in states.items() if self._known.get(key) != state]
        if changed and note and not self._known:
            print(note, flush=True)
        ended = sum(status in (FINISHED, FAILED) for key, (status, _) in self._known.items() if key not in changed)
        for key in changed:
            job = view.sweep_jobs.jobs[key]
            ended += job["status"] in (FINISHED, FAILED)
            place = f"{ended} of {view.total}  " if job["status"] in (FINISHED, FAILED) else ""
            metric = f"  {job['optimized_metric']} {job['metric']:.6g}" if job["status"] == FINISHED else ""
            why = f"  {shorten(job['reason'])}" if job["reason"] else ""
            print(f"{place}{job['directory']}: {job['status']}{metric}{why}", flush=True)
        self._known |= states


def print_table(view: SweepView, note: str = "") -> None:
    """Prints it as wide as the terminal, or as wide as it is where there is none."""
    console = wide_console()
    console.print(layout(view, note, console.width))


def layout(view: SweepView, note: str = "", width: int = 80, height: int | None = None) -> Group:
    """Table, reasons, summary and note. If there are more jobs than lines, the most important ones."""
    jobs, lines = view.jobs, [*_reasons(view.jobs), summary(view), *filter(None, [note])]
    room = len(jobs) if height is None else max(3, height - len(lines) - 7)
    if len(jobs) > room:
        jobs = sorted(jobs, key=lambda job: _PRIORITY.index(job.status))[:room]
        lines.insert(0, f"and {len(view.jobs) - room} more jobs")
    return Group(*([_table(jobs, width)] if jobs else []), *map(Text, lines))


def _table(jobs: Sequence[JobView], width: int) -> Table:
    rows = [_cells(job) for job in jobs]
    names = [name for name in (_COLUMNS if width >= _WIDE else _NARROW) if any(row[name] for row in rows)]
    table = Table(**({"box": None, "pad_edge": False} if width == UNLIMITED else {}))
    for name in names:
        table.add_column(name, no_wrap=name != "overrides", justify="left" if name in ("overrides", "state") else "right")
    for row in rows:
        table.add_row(*(Text(row[name], style=_STYLES[row["state"]] if name == "state" else "") for name in names))
    return table


def _cells(job: JobView) -> dict[str, str]:
    known = job.progress | job.record
    epoch, epochs, step, share = (known.get(name) for name in ("epoch", "epochs", "step", "share"))
    rate, left = known.get("samples_per_second"), known.get("seconds_left")
    return {
        "job": str(job.number),
        "overrides": job.label,
        "devices": str(job.devices),
        "state": job.status,
        "epoch": "" if epoch is None else f"{epoch}/{epochs}" if epochs is not None and epochs > 0 else str(epoch),
        "step": "" if step is None else str(step),
        "done": "" if share is None or job.status == FINISHED else f"{share:.0%}",
        "metric": "" if job.metric is None else f"{job.metric:.5g}",
        "samples/s": "" if rate is None else f"{rate:,.0f}",
        "time": format_duration(job.seconds),
        "left": format_duration(left) if job.status == RUNNING else "",
    }


def _reasons(jobs: Sequence[JobView]) -> list[str]:
    """Why jobs have failed or were interrupted, and what others wait for; the same reason once. Which jobs were trained for
    longer than others, by train.py resume=DIRECTORY, where that is not what the sweep compares."""
    numbers: dict[str, list[int]] = {}
    ends = {job.reason for job in jobs if job.status == FINISHED and (job.reason or "").startswith("trainer.max_")}
    told = ends if len(ends) > 1 and not any(".max_" in key for job in jobs for key in job.varying) else ()
    for job in sorted(jobs, key=lambda job: (_PRIORITY.index(job.status), job.number)):
        if job.reason is not None and (job.status != FINISHED or job.reason in told):
            line = f"{'tried again' if job.status == RUNNING else job.status}: {shorten(job.reason)}"
            numbers.setdefault(line, []).append(job.number)
    lines = [f"{join_first(some, 6)} {line}" for line, some in numbers.items()]
    return lines[:_REASONS] + ([f"and {len(lines) - _REASONS} more reasons"] if len(lines) > _REASONS else [])


def shorten(reason: str) -> str:
    """The first part of a reason, with the names of files alone: all that a table has room for. The whole is in the job's log and
    its status.json."""
    if len(reason) <= 60:
        return reason
    return textwrap.shorten(re.sub(r"(?<![\w.:/])/\S+/", ".../", re.split(r"[,;]\s", reason)[0]), 80, placeholder=" ...")


def summary(view: SweepView) -> str:
    """One line: how many jobs are in which state, and the best of them."""
    if not view.jobs:
        return "no jobs yet"
    done = f"{view.counts[FINISHED]} of {view.total} job{'s' * (view.total != 1)} finished"
    states = [f"{view.counts[state]} {state}" for state in (RUNNING, WAITING, FAILED, INTERRUPTED) if view.counts[state]]
    best = view.best
    words = "" if best is None else f" · best {best.entry['optimized_metric']} {best.metric:.5g} (job {best.number})"
    return ", ".join([done, *states]) + words
