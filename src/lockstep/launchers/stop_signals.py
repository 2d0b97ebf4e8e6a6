"""Requests to stop: SIGTERM, SIGHUP (the terminal has closed), SIGUSR1 (a queue's warning before a time limit) and Ctrl-C."""

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
SECOND_CTRL_C = 5.0  # seconds for a process to exit by itself after the second Ctrl-C
STOPPING = "Stopping: a checkpoint is saved first; a second Ctrl-C stops at once."
DEBUGGER_HINT = " At the debugger's prompt, type c."


class Preempted(BaseException):
    """The run was asked to stop and can be resumed. `unsaved`: why no checkpoint was saved at the end, or None."""

    def __init__(self, number: int, unsaved: str | None = None) -> None:
        lost = "" if unsaved is None else f", without a new checkpoint: {unsaved}"
        super().__init__(f"preempted by {signal.Signals(number).name}{lost}")
        self.number, self.unsaved = number, unsaved


class StopSignals:
    """The stop requests that this process has received.

    The first one raises Preempted at once. While `deferred` is true, requests are only recorded until the next step boundary,
    where a checkpoint can be saved; even then the second Ctrl-C raises at once.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}  # the earlier handlers
        self._wakeup: tuple[socket.socket, ...] = ()
        self._forget()

    def _forget(self) -> None:
        self.deferred = False
        self.received: list[int] = []
        self.raised: Preempted | None = None  # why the process ends, even if it then ends with another error
        self.process = 0  # the pid that listens; its forks, the data workers, ignore signals and end with their parent
        self._noticed: list[tuple[int, float]] = []  # signals that have arrived, and when the watching thread saw them
        self._may_raise = True
        self._end: int | None = None  # the code to exit with at once

    def listen(self) -> None:
        """Install the signal handlers in this process; raise Preempted if a request has already been received."""
        if self.process != os.getpid():
            self.stop_listening()
            self.process = os.getpid()
            atexit.register(self._ignore)
            self._wakeup = socket.socketpair()
            for end in self._wakeup:
                end.setblocking(False)
            signal.set_wakeup_fd(self._wakeup[1].fileno(), warn_on_full_buffer=False)  # written to by C code, at once
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                    self._previous[number] = signal.signal(number, self._receive)
        self.deferred, self._may_raise, self._end = False, True, None
        if self.received:
            self._raise(leading(self.received))

    def stop_listening(self) -> None:
        """Restore the earlier handlers, and forget the requests."""
        if self._wakeup:
            signal.set_wakeup_fd(-1)
        for end in self._wakeup:
            end.close()
        self._wakeup = ()
        atexit.unregister(self._ignore)
        for number in list(self._previous):
            signal.signal(number, self._previous.pop(number))
        self._forget()

    def unanswered(self, deadline: float) -> Preempted | None:
        """Return the request to which this process should have exited by now: `deadline` seconds after the first signal.

        A thread calls this. The main thread may be stuck where Python runs no handlers, in a collective that waits for another
        rank for example.
        """
        if not self._wakeup:
            return None
        now = time.monotonic()
        with contextlib.suppress(OSError):  # nothing has arrived
            self._noticed += [(number, now) for number in self._wakeup[0].recv(64) if number in SIGNALS]
        numbers = [number for number, _ in self._noticed]
        interrupts = [when for number, when in self._noticed if number == signal.SIGINT]
        if len(interrupts) > 1 and now > interrupts[1] + SECOND_CTRL_C:
            return Preempted(leading(numbers), "second Ctrl-C")
        if self._noticed and now > self._noticed[0][1] + deadline:
            return Preempted(leading(numbers), f"no answer within {round(deadline, 1):g} s")
        return None

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
            self._raise(number, "second Ctrl-C" if self.deferred else None)
        if self.deferred and number == signal.SIGINT:
            hint = DEBUGGER_HINT if in_debugger() else ""
            with contextlib.suppress(OSError):  # the terminal is gone
                os.write(2, f"\n{STOPPING}{hint}\n".encode())

    def _raise(self, number: int, unsaved: str | None = None) -> NoReturn:
        self._may_raise = False
        self.raised = Preempted(number, unsaved)
        raise self.raised

    def _ignore(self) -> None:
        for number in self._previous:  # Python restores the default handlers while it shuts down
            signal.signal(number, signal.SIG_IGN)


def leading(received: Sequence[int]) -> int:
    """Return the signal that counts: SIGUSR1, which asks for a requeue, else the first one, or 0 if there is none."""
    return signal.SIGUSR1 if signal.SIGUSR1 in received else next(iter(received), 0)


def in_debugger() -> bool:
    """True if the main thread is at a debugger's prompt, or is traced by one."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_globals.get("__name__") != "bdb":
        frame = frame.f_back
    return frame is not None or sys.gettrace() is not None


STOP_SIGNALS = StopSignals()
# Signals of a forked process would otherwise be written to its parent's socket.
os.register_at_fork(after_in_child=lambda: STOP_SIGNALS.process and signal.set_wakeup_fd(-1))
