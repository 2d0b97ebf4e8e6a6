"""A thread that detects when the process makes no progress, even if the main thread is stuck."""

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

DEBUGGED = ".debugged"  # a file in the run's directory: a process is at a debugger's prompt, so the others wait
SHUTDOWN_GRACE = 3.0  # seconds for the other ranks, which wait for this one, to write their stacks too
_AWAY = 5.0  # seconds; a longer pause of this thread is not counted: Ctrl-Z or a queue has stopped the process


class Heartbeat:
    """Call `give_up` if no `beat()` arrives before the deadline. Time at a debugger's prompt does not count.

    has_stepped: True once the optimizer has made a step, after which any error is a failure of the run, not a refusal to start.
    """

    def __init__(self) -> None:
        self.has_stepped = False
        self._where, self._limit, self._due = "", float("inf"), float("inf")  # due in time.monotonic
        self._over = threading.Event()
        self._mark: Path | None = None  # while this process is at a debugger's prompt

    def start(self, limit: float, log: Path, give_up: Callable[[str], None]) -> None:
        """Start watching. Before `give_up`, append the stacks of all threads to `log` and wait for other ranks to do so."""
        self.stop()
        self.has_stepped = False
        self._over = threading.Event()
        self.beat("at the start", limit)
        threading.Thread(target=self._watch, args=(self._over, log, give_up), name="heartbeat", daemon=True).start()

    def beat(self, where: str, limit: float) -> None:
        """Report progress; the next report is due within `limit` seconds."""
        self._where, self._limit, self._due = where, limit, time.monotonic() + limit

    def stop(self) -> None:
        self._over.set()
        self._mark_debugged(None)

    def _mark_debugged(self, mark: Path | None) -> None:
        with contextlib.suppress(OSError):
            if mark is not None:
                mark.touch()
            elif self._mark is not None:
                self._mark.unlink(missing_ok=True)
        self._mark = mark

    def _watch(self, over: threading.Event, log: Path, give_up: Callable[[str], None]) -> None:
        looked, mark = time.monotonic(), log.parent / DEBUGGED
        while not over.wait(min(1.0, self._limit / 4)):
            before, looked = looked, time.monotonic()
            if (self._mark is not None) != in_debugger():
                self._mark_debugged(mark if self._mark is None else None)
            if looked - before > _AWAY or mark.exists():
                self._due += looked - before
            if not self._is_late():
                continue
            reason = f"no progress for {self._limit:g} s, {self._where}; the stacks of its threads are in {log.name}"
            dump_stacks(log, reason)
            if not over.wait(SHUTDOWN_GRACE) and self._is_late():  # still no progress
                give_up(reason)

    def _is_late(self) -> bool:
        return time.monotonic() > self._due


def in_debugger() -> bool:
    """True if the main thread is at a debugger's prompt, or is traced by one."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_globals.get("__name__") != "bdb":
        frame = frame.f_back
    return frame is not None or sys.gettrace() is not None


def dump_stacks(log: Path, why: str) -> None:
    """Append the stack of every thread of this process."""
    with contextlib.suppress(OSError), log.open("a") as file:  # the disk may be full
        print(why, file=file, flush=True)
        faulthandler.dump_traceback(file)


HEARTBEAT = Heartbeat()
