"""Being asked to stop: by SIGTERM, SIGHUP (the terminal has closed), SIGUSR1 (a queue's warning before a time limit)
and Ctrl-C."""

import atexit
import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from lockstep.launchers.cluster import queue

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
FORCE_QUIT_GRACE = 5.0  # seconds that a process gets to leave by itself after the second Ctrl-C
HEARD = 10.0  # seconds in which a process that has nothing to save runs its handler, or is stuck


class Preempted(BaseException):
    """The run was asked to stop and can be resumed. Like KeyboardInterrupt it is nobody's to catch on the way.

    `unsaved` says why what was trained since the last checkpoint is not in one.
    """

    def __init__(self, number: int, unsaved: str | None = None) -> None:
        lost = "" if unsaved is None else f", with nothing saved anew: {unsaved}"
        super().__init__(f"preempted by {signal.Signals(number).name}{lost}")
        self.number, self.unsaved = number, unsaved


def leading(received: Sequence[int]) -> int:
    """The signal that counts, 0 if there is none: the first one, but SIGUSR1 wins: it asks for a requeue."""
    return signal.SIGUSR1 if signal.SIGUSR1 in received else next(iter(received), 0)


class StopSignals:
    """What this process was asked by signals. Raises Preempted at once, or, while `deferred`, only notes it, for
    whoever asks at the next step boundary: a signal handler is no place for a collective or a checkpoint.

    The second Ctrl-C is always at once. It is raised one time only: the process is then on its way out.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.received: list[int] = []
        self.raised: Preempted | None = None  # whatever the process ends with then, this is why
        self._may_raise = True
        self._exit_code: int | None = None
        self._process = 0
        self._overdue: Callable[[Preempted], None] | None = None
        self._previous: dict[int, Any] = {}  # the handlers there were
        self._wakeup: int | None = None

    @property
    def is_listening(self) -> bool:
        """In this process, or in the one that it was forked from."""
        return self._process > 0

    def listen(
        self,
        deadline: float = float("inf"),
        overdue: Callable[[Preempted], None] | None = None,
        signals: Collection[int] = SIGNALS,
    ) -> None:
        """From now on, in this process; a data worker that inherits the handlers ignores them and ends with us. Raises Preempted
        where this process listens already, and has been asked.

        Calls `overdue` from another thread if this process is still there `deadline` seconds after the first request, or less
        where its job ends sooner: its main thread may be stuck where no handler of Python's is run, in a collective that waits
        for a rank, say. While nothing is `deferred` there is nothing to save, and nobody waits for a main thread that is stuck.
        """
        self._handle(signals)
        self.deferred, self._may_raise, self._exit_code = False, True, None
        self._overdue = overdue
        if overdue is not None:
            self._forget_deadline()
            reader, self._wakeup = os.pipe()
            os.set_blocking(self._wakeup, False)
            signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)  # written to by C code, at once
            arguments = (reader, deadline, overdue, self._is_deaf)
            threading.Thread(target=_wait, args=arguments, name="stop-deadline", daemon=True).start()
        if self.received:
            self._raise(leading(self.received))

    def stop_listening(self) -> None:
        """Leaves the handlers as they were, and forgets."""
        self._forget_deadline()
        atexit.unregister(self._ignore)
        self._release(list(self._previous))
        self.deferred, self.received, self.raised, self._may_raise, self._overdue = False, [], None, True, None
        self._exit_code, self._process = None, 0

    def _handle(self, signals: Collection[int]) -> list[int]:
        """Returns those that were not handled before."""
        if self._process != os.getpid():
            self.stop_listening()
            self._process = os.getpid()
            atexit.register(self._ignore)
        new = [n for n in signals if n not in self._previous and signal.getsignal(n) is not signal.SIG_IGN]  # nohup
        for number in new:
            self._previous[number] = signal.signal(number, self._receive)
        return new

    def _release(self, signals: Sequence[int]) -> None:
        for number in signals:
            signal.signal(number, self._previous.pop(number))

    def _forget_deadline(self) -> None:
        if self._wakeup is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._wakeup)
            self._wakeup = None

    @contextlib.contextmanager
    def deferring(self) -> Iterator[list[int]]:
        """Within, nothing is raised, however often it is asked: whoever looks at the list decides."""
        was_listening, might_raise = self._process == os.getpid(), self._may_raise
        new = self._handle(SIGNALS)
        self._may_raise = False
        try:
            yield self.received
        finally:
            self._may_raise = might_raise
            if was_listening:
                self._release(new)
            else:
                self.stop_listening()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within, a request waits until what must not be broken off half-way is done."""
        might_raise, asked = self._may_raise, len(self.received)
        self._may_raise = False
        try:
            yield
        finally:
            self._may_raise = might_raise
        if might_raise and not self.deferred and len(self.received) > asked:
            self._raise(leading(self.received))

    def leave(self) -> None:
        """The process is on its way out: nothing is raised from here on."""
        self._may_raise = False

    def end_with(self, code: int) -> None:
        """All is said and done but for leaving: a request now makes that happen at once, with the same code."""
        self._exit_code = code

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return
        self.received.append(number)
        if self._exit_code is not None:
            os._exit(self._exit_code)
        if self._may_raise and (not self.deferred or self.received.count(signal.SIGINT) > 1):
            if self._overdue is not None and _imports(frame):  # where code in C++ that imports, torch's, aborts if it raises
                self._may_raise = False
                self._overdue(Preempted(number))
                return
            self._raise(number, "asked for twice" if self.deferred else None)

    def _raise(self, number: int, unsaved: str | None = None) -> NoReturn:
        self._may_raise = False
        self.raised = Preempted(number, unsaved)
        raise self.raised

    def _is_deaf(self) -> bool:
        """Has no handler been run, of a request that is to be met at once?"""
        return not self.deferred and not self.received

    def _ignore(self) -> None:
        """Ignores signals while Python tears itself down, when it would put the default handlers back."""
        for number in self._previous:
            signal.signal(number, signal.SIG_IGN)

    def forget_wakeup(self) -> None:
        """In a process that was forked: what it receives is not meant for us."""
        if self._wakeup is not None:
            signal.set_wakeup_fd(-1)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _wait(
    reader: int, deadline: float, overdue: Callable[[Preempted], None], is_deaf: Callable[[], bool] = lambda: False
) -> None:
    """Reads the numbers of all signals received, until there is no writer."""
    received: list[int] = []
    why, due, heard_by = "", float("inf"), float("inf")
    while (now := time.monotonic()) < due:
        if now >= heard_by:
            if is_deaf():
                why = f"no answer within {HEARD:g} s"
                break
            heard_by = float("inf")
        left = min(due, heard_by) - now
        if not select.select([reader], [], [], None if left == float("inf") else left)[0]:
            continue
        if not (numbers := os.read(reader, 64)):
            os.close(reader)
            return
        now = time.monotonic()  # the deadline is counted from the request
        received += [number for number in numbers if number in SIGNALS]
        if received.count(signal.SIGINT) > 1:
            why, due = "asked for twice", min(due, now + FORCE_QUIT_GRACE)
        elif received and not why:
            limit = queue().within_job(deadline)
            why, due, heard_by = f"no answer within {round(limit, 1):g} s", now + limit, now + HEARD
    overdue(Preempted(leading(received), why))


STOP_SIGNALS = StopSignals()
os.register_at_fork(after_in_child=STOP_SIGNALS.forget_wakeup)
