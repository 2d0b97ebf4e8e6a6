"""`scripts/sweep.py watch`: a sweep's table from any terminal, until the sweep has ended."""

import sys
import time

from lockstep import console
from lockstep.errors import ExitCode
from lockstep.sweeps.live_table import COLUMNS, Changes, Screen, rows_of, say_each, words_of
from lockstep.sweeps.states import FAILED
from lockstep.sweeps.sweep import resume_hint
from lockstep.sweeps.view import SweepView, Watched


def watch(watched: Watched, interval: float, once: bool = False) -> int:
    """Shows how the sweep stands every `interval` seconds; what it ends with: the sweep's own code, or 0 where it was left."""
    shown = Screen() if sys.stdout.isatty() else Lines()
    try:
        while not (found := watched.look()).has_ended and not once:
            shown.show(found, note_of(found))
            time.sleep(interval)
        shown.end(found, note_of(found))
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


class Lines:
    """Where there is no terminal: the table once, then a line whenever a job changes its state, and one of all jobs."""

    def __init__(self) -> None:
        self._changes, self._has_begun = Changes(), False

    def show(self, found: SweepView, note: str = "", *, is_last: bool = False) -> None:
        changed = self._changes.of({job.key: (job.status, job.tries) for job in found.jobs})
        if not self._has_begun:
            console.show_table(rows_of(found.jobs), COLUMNS)
        elif changed or is_last:
            say_each([job for job in found.jobs if job.key in changed])
        else:
            return
        self._has_begun = True
        print("\n".join(filter(None, [words_of(found), note])), flush=True)

    def end(self, found: SweepView, note: str = "") -> None:
        self.show(found, note, is_last=True)

    def close(self) -> None:
        """There is nothing to take away."""
