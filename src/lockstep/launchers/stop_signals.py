"""Requests to stop: SIGTERM, SIGHUP (the terminal has closed), SIGUSR1 (a queue's warning before a time limit) and Ctrl-C."""

import atexit
import contextlib
import math
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from lockstep.launchers.heartbeat import in_debugger

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
SECOND_CTRL_C = 5.0  # seconds for a process to exit by itself after the second Ctrl-C
Overdue = Callable[["Preempted"], None]


class Preempted(BaseException):
    """The run was asked to stop and can be resumed. `unsaved`: why no checkpoint was saved at the end, or None."""

    def __init__(self, number: int, unsaved: str | None = None) -> None:
        lost = "" if unsaved is None else f", with nothing saved anew: {unsaved}"
        super().__init__(f"preempted by {signal.Signals(number).name}{lost}")
        self.number, self.unsaved = number, unsaved


def leading(received: Sequence[int]) -> int:
    """Return the signal that counts: SIGUSR1, which asks for a requeue, else the first one, or 0 if there is none."""
    return signal.SIGUSR1 if signal.SIGUSR1 in received else next(iter(received), 0)


class StopSignals:
    """The stop requests that this process has received.

    The first one raises Preempted at once. While `deferred` is true, requests are only recorded until the next step boundary,
    where a checkpoint can be saved; even then the second Ctrl-C raises at once.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}  # the earlier handlers
        self._wakeup: int | None = None
        self._forget()

    def _forget(self) -> None:
        self.deferred = False
        self.received: list[int] = []
        self.raised: Preempted | None = None  # why the process ends, even if it then ends with another error
        self.process = 0  # the pid that listens; its forks, the data workers, ignore signals and end with their parent
        self._may_raise = True
        self._end: int | None = None  # the code to exit with at once

    def listen(self, deadline: float = math.inf, overdue: Overdue | None = None) -> None:
        """Install the signal handlers in this process; raise Preempted if a request has already been received.

        Call `overdue` from another thread if this process still runs `deadline` seconds after the first request. Its main thread
        may be stuck where Python runs no handlers, in a collective that waits for a rank for example.
        """
        if self.process != os.getpid():
            self.stop_listening()
            self.process = os.getpid()
            atexit.register(self._ignore)
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                    self._previous[number] = signal.signal(number, self._receive)
        self.deferred, self._may_raise, self._end = False, True, None
        if overdue is not None:
            reader, self._wakeup = os.pipe()
            os.set_blocking(self._wakeup, False)
            signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)  # written to by C code, at once
            threading.Thread(target=_wait, args=(reader, deadline, overdue), name="stop-deadline", daemon=True).start()
        if self.received:
            self._raise(leading(self.received))

    def stop_listening(self) -> None:
        """Restore the earlier handlers, and forget the requests."""
        if self._wakeup is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._wakeup)
            self._wakeup = None
        atexit.unregister(self._ignore)
        for number in list(self._previous):
            signal.signal(number, self._previous.pop(number))
        self._forget()

    @contextlib.contextmanager
    def deferring(self) -> Iterator[list[int]]:
        """Raise nothing until the block exits, and yield the list of received signals."""
        was_listening, might_raise = self.process == os.getpid(), self._may_raise
        if not was_listening:
            self.listen()
        self._may_raise = False
        try:
            yield self.received
        finally:
            self._may_raise = might_raise
            if not was_listening:
                self.stop_listening()

    def leave(self) -> None:
        """Raise nothing from now on, because the process is exiting."""
        self._may_raise = False

    def end_with(self, code: int) -> None:
        """Exit immediately with `code` on any signal from now on."""
        self._end = code

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:
            return
        self.received.append(number)
        if self._end is not None:
            os._exit(self._end)
        if self._may_raise and (not self.deferred or self.received.count(signal.SIGINT) > 1):
            if any(one.f_code.co_filename.startswith("<frozen importlib") for one, _ in traceback.walk_stack(frame)):
                self.received.pop()  # sent again below: torch's C++ code aborts if an import in it raises
                threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
                return
            self._raise(number, "asked for twice" if self.deferred else None)
        if self.deferred and number == signal.SIGINT:
            hint = " At the debugger's prompt, type c." if in_debugger() else ""
            with contextlib.suppress(OSError):  # the terminal is gone
                os.write(2, f"\nStopping at the next step; Ctrl-C again stops at once.{hint}\n".encode())

    def _raise(self, number: int, unsaved: str | None = None) -> NoReturn:
        self._may_raise = False
        self.raised = Preempted(number, unsaved)
        raise self.raised

    def _ignore(self) -> None:
        for number in self._previous:  # Python restores the default handlers while it shuts down
            signal.signal(number, signal.SIG_IGN)


def _wait(reader: int, deadline: float, overdue: Overdue) -> None:
    """Read signal numbers until the pipe closes, and call `overdue` if the first signal is not handled in time."""
    received: list[int] = []
    why, due = "", math.inf
    while (left := due - time.monotonic()) > 0:
        if not select.select([reader], [], [], None if left == math.inf else left)[0]:
            break
        if not (numbers := os.read(reader, 64)):
            os.close(reader)
            return
        received += [number for number in numbers if number in SIGNALS]
        if received.count(signal.SIGINT) > 1:
            why, due = "asked for twice", min(due, time.monotonic() + SECOND_CTRL_C)
        elif received and not why:
            why, due = f"no answer within {round(deadline, 1):g} s", time.monotonic() + deadline
    overdue(Preempted(leading(received), why))


STOP_SIGNALS = StopSignals()
# Detach the wakeup pipe in a forked process, which would otherwise write its signals to its parent's pipe.
os.register_at_fork(after_in_child=lambda: STOP_SIGNALS._wakeup is not None and signal.set_wakeup_fd(-1))
