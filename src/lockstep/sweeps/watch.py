"""`scripts/sweep.py watch`: a sweep's table from any terminal, until the sweep has ended."""

import sys
import time

from rich.console import Console

from lockstep import console
from lockstep.errors import ExitCode
from lockstep.sweeps.job_directory import FAILED
from lockstep.sweeps.live_table import COLUMNS, Changes, Screen, fitted, rows_of, say_each, words_of
from lockstep.sweeps.sweep import resume_hint
from lockstep.sweeps.view import JobView, SweepView, Watched


def watch(watched: Watched, interval: float, once: bool = False) -> int:
    """Shows how the sweep stands every `interval` seconds; what it ends with: the sweep's own code, or 0 where it was left."""
    shown = Terminal() if sys.stdout.isatty() else Lines()
    try:
        while not (found := watched.look()).has_ended and not once:
            shown.show(found)
            time.sleep(interval)
        shown.end(found)
    except KeyboardInterrupt:
        shown.close()
        return ExitCode.FINISHED
    return found.exit_code if found.has_ended else ExitCode.FINISHED


def note_of(found: SweepView) -> str:
    """What a person can do about it; nothing where the sweep runs, or all is well."""
    if found.is_held or found.exit_code == ExitCode.FINISHED:
        return ""
    again = resume_hint(found.directory)
    if found.is_queued:
        return f"No sweep process; SLURM has jobs in its queue. To have what follows them done: {again}"
    has_failed = found.exit_code == ExitCode.FAILED and found.counts[FAILED]
    return f"No sweep process. {'Try again what failed' if has_failed else 'Start it again'}: {again}"


class Terminal:
    """The table in one place; what is left of it in the end is the whole of it."""

    def __init__(self) -> None:
        self._screen = Screen()

    def show(self, found: SweepView) -> None:
        self._screen.show(found, note_of(found))

    def end(self, found: SweepView) -> None:
        self.close()
        out = Console()
        out.print(fitted(found, note_of(found), out.width))

    def close(self) -> None:
        self._screen.close()


class Lines:
    """Where there is no terminal: the table once, then a line whenever a job changes its state, and one of all jobs."""

    def __init__(self) -> None:
        self._changes, self._has_begun = Changes(), False

    def show(self, found: SweepView) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._changed(found)
            console.show_table(rows_of(found.jobs), COLUMNS)
            self._say(found)
        elif changed := self._changed(found):
            say_each(changed)
            self._say(found)

    def end(self, found: SweepView) -> None:
        if self._has_begun:
            say_each(self._changed(found))
            self._say(found)
        else:
            self.show(found)

    def _changed(self, found: SweepView) -> list[JobView]:
        keys = {*self._changes.of({job.key: (job.status, job.tries) for job in found.jobs})}
        return [job for job in found.jobs if job.key in keys]

    def close(self) -> None:
        """There is nothing to take away."""

    def _say(self, found: SweepView) -> None:
        print("\n".join(filter(None, [words_of(found), note_of(found)])), flush=True)
