"""A thread that detects when the process makes no progress or does not stop when asked, even if the main thread is stuck."""

import contextlib
import faulthandler
import threading
import time
from collections.abc import Callable
from math import inf
from pathlib import Path

from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted, in_debugger

DEBUGGED = ".debugged"  # a file in the run's directory: a process is at a debugger's prompt, so the others wait
SHUTDOWN_GRACE = 3.0  # seconds for the other ranks, which wait for this one, to write their stacks too
_AWAY = 5.0  # seconds; a longer pause of this thread is not counted: Ctrl-Z or a queue has stopped the process


class NoProgress(Exception):
    """No `beat()` has arrived in time."""


class Heartbeat:
    """Watch this process from another thread.

    has_stepped: True once the optimizer has made a step, after which any error is a failure of the run, not a refusal to start.
    """

    def __init__(self) -> None:
        self.has_stepped = False
        self._where, self._limit, self._due = "", inf, inf  # due in time.monotonic
        self._over, self._log, self._is_debugged = threading.Event(), Path(), False

    def start(self, limit: float, log: Path, give_up: Callable[[BaseException], None], deadline: float = inf) -> None:
        """Start watching.

        Args:
            limit: Seconds until the first `beat()`. Time at a debugger's prompt does not count.
            log: File that the stacks of all threads are appended to before `give_up` is called.
            give_up: Called with NoProgress, or with Preempted if this process still runs long after a stop signal.
            deadline: Seconds from a stop signal to the end of this process.
        """
        self.stop()
        self.has_stepped = False
        self._over, self._log = threading.Event(), log
        self.beat("at the start", limit)
        threading.Thread(target=self._watch, args=(self._over, give_up, deadline), name="heartbeat", daemon=True).start()

    def beat(self, where: str, limit: float) -> None:
        """Report progress; the next report is due within `limit` seconds."""
        self._where, self._limit, self._due = where, limit, time.monotonic() + limit

    def stop(self) -> None:
        self._over.set()
        self._mark_debugged(False)

    def _mark_debugged(self, is_debugged: bool) -> None:
        mark = self._log.parent / DEBUGGED
        with contextlib.suppress(OSError):
            if is_debugged and not self._is_debugged:
                mark.touch()
            elif self._is_debugged and not is_debugged:
                mark.unlink(missing_ok=True)
        self._is_debugged = is_debugged

    def _watch(self, over: threading.Event, give_up: Callable[[BaseException], None], deadline: float) -> None:
        looked = time.monotonic()
        while not over.wait(min(1.0, self._limit / 4, deadline / 4)):
            before, looked = looked, time.monotonic()
            self._mark_debugged(in_debugger())
            if looked - before > _AWAY or (self._log.parent / DEBUGGED).exists():
                self._due += looked - before
            error = STOP_SIGNALS.unanswered(deadline) or self._no_progress()
            if error is None:
                continue
            dump_stacks(self._log, str(error))
            if isinstance(error, Preempted) or (not over.wait(SHUTDOWN_GRACE) and self._no_progress()):
                give_up(error)
                return

    def _no_progress(self) -> NoProgress | None:
        if time.monotonic() <= self._due:
            return None
        return NoProgress(f"no progress for {self._limit:g} s, {self._where}; the stacks of its threads are in {self._log.name}")


def dump_stacks(log: Path, why: str) -> None:
    """Append the stack of every thread of this process."""
    with contextlib.suppress(OSError), log.open("a") as file:  # the disk may be full
        print(why, file=file, flush=True)
        faulthandler.dump_traceback(file)


HEARTBEAT = Heartbeat()
