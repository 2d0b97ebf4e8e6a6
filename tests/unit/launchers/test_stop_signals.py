"""Being asked to stop by a signal: noted while training, at once otherwise; and who is put back into SLURM's queue."""

import ctypes
import importlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_for

from lockstep.launchers.heartbeat import Heartbeat
from lockstep.launchers.stop_signals import SIGNALS, STOP_SIGNALS, Preempted, StopSignals, leading


@pytest.fixture
def requests() -> Iterator[StopSignals]:
    """Listening in this process, whose handlers are Python's own before it; those that were there come back."""
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    requests = StopSignals()
    requests.listen()
    yield requests
    requests.stop_listening()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def ask(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0)  # Python runs the handler between two of its instructions


@pytest.mark.usefixtures("requests")
@pytest.mark.parametrize("number", SIGNALS)
def test_outside_training_it_is_at_once(number: signal.Signals) -> None:
    with pytest.raises(Preempted, match=rf"^preempted by {number.name}$") as raised:
        ask(number)
    assert raised.value.number == number


@pytest.mark.parametrize("number", SIGNALS)
def test_while_training_it_is_noted(number: signal.Signals, requests: StopSignals) -> None:
    requests.deferred = True
    ask(number)
    assert requests.received == [number]


def test_the_first_counts_but_for_the_one_that_asks_for_a_requeue(requests: StopSignals) -> None:
    requests.deferred = True
    for number, received in (
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGUSR1, signal.SIGUSR1),
        (signal.SIGTERM, signal.SIGUSR1),
    ):
        ask(number)
        assert leading(requests.received) == received


def test_the_second_ctrl_c_is_at_once_and_only_that(requests: StopSignals) -> None:
    requests.deferred = True
    ask(signal.SIGTERM)
    ask(signal.SIGTERM)
    requests.stop_listening()
    requests.listen()
    requests.deferred = True
    ask(signal.SIGINT)
    with pytest.raises(Preempted, match="without a new checkpoint: second Ctrl-C"):
        ask(signal.SIGINT)
    ask(signal.SIGINT)  # the process is on its way out: no third one interrupts that


def test_a_program_under_nohup_stays_so(requests: StopSignals) -> None:
    requests.stop_listening()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        requests.listen()
        ask(signal.SIGHUP)
        assert requests.received == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_while_deferring_nothing_is_raised(requests: StopSignals) -> None:
    with requests.deferring() as received:
        for _ in range(3):
            ask(signal.SIGINT)
    assert received == [signal.SIGINT] * 3
    fresh = StopSignals()
    with fresh.deferring() as received:
        ask(signal.SIGTERM)
    assert received == [signal.SIGTERM]
    assert not fresh.process


def test_a_request_in_an_import_raises_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code in C++ that imports, torch's, would abort."""
    (tmp_path / "asked_in_an_import.py").write_text("import signal\nsignal.raise_signal(signal.SIGTERM)\nDONE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    requests = StopSignals()
    requests.listen()
    try:
        assert importlib.import_module("asked_in_an_import").DONE
        with pytest.raises(Preempted, match="by SIGTERM"):
            time.sleep(10)  # it is asked again soon
    finally:
        requests.stop_listening()


def test_what_was_asked_before_counts_for_who_listens_next(requests: StopSignals) -> None:
    """A run, after the program that has begun it; whatever has made nothing of it in between."""
    with requests.deferring(), requests.deferring():
        ask(signal.SIGTERM)  # what must not be broken off is not
    for _ in range(2):
        with pytest.raises(Preempted, match="by SIGTERM"):
            requests.listen()
    assert requests.raised is not None
    requests.stop_listening()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# A deadline


@pytest.fixture
def overdue(tmp_path: Path) -> Iterator[list[BaseException]]:
    """The errors reported for a request that is not met within a second."""
    heartbeat, heard = Heartbeat(), list[BaseException]()
    STOP_SIGNALS.listen()
    STOP_SIGNALS.deferred = True
    heartbeat.start(math.inf, tmp_path / "train.log", heard.append, 1)
    yield heard
    heartbeat.stop()
    STOP_SIGNALS.stop_listening()


def test_a_request_has_a_deadline(overdue: list[BaseException]) -> None:
    os.kill(os.getpid(), signal.SIGCHLD)  # no request
    if (child := os.fork()) == 0:  # nor is what a data worker is asked
        ask(signal.SIGTERM)
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(1.5)
    assert not overdue
    ask(signal.SIGTERM)
    time.sleep(0.1)
    ask(signal.SIGUSR1)
    assert not overdue
    wait_for(lambda: overdue)
    assert list(map(str, overdue)) == ["preempted by SIGUSR1, without a new checkpoint: no answer within 1 s"]


def test_the_deadline_holds_where_no_handler_of_python_s_is_run(overdue: list[BaseException]) -> None:
    """As in a collective that waits for a rank that has been suspended: C code that goes on waiting after a signal."""
    ctypes.CDLL(None).system(b"kill -TERM $PPID; sleep 3")
    assert list(map(str, overdue)) == ["preempted by SIGTERM, without a new checkpoint: no answer within 1 s"]


LATE = """
import os, signal
from lockstep.launchers.stop_signals import STOP_SIGNALS
class Late:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGINT):
        kill(me, number)
STOP_SIGNALS.listen()
STOP_SIGNALS.end_with(75)
late = Late()
late.itself = late
raise SystemExit(75)
"""


def test_a_request_while_python_ends_does_not_change_the_code() -> None:
    assert subprocess.run([sys.executable, "-c", LATE], check=False).returncode == 75
