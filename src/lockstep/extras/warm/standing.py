"""What a command does while a server's process runs it: it passes signals on, and ends as that does."""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Set


def stand_for(connection: socket.socket, word: bytes, signals: Set[signal.Signals]) -> None:
    """From the word that it is to begin to its end. Raises OSError where it has not begun."""
    passed_on = {number for number in signals if signal.getsignal(number) is not signal.SIG_IGN}  # nohup
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    before = {number: signal.signal(number, lambda number, _: _pass_on(connection, number)) for number in passed_on}
    try:
        connection.send(word)
    except OSError:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    connection.settimeout(None)
    _end_as(connection.recv(16).decode())


def _pass_on(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # it has just ended
        connection.send(b"%d" % number)


def _end_as(status: str) -> None:
    if not status:
        print("The command was lost: its server's process has died. What it has saved can be resumed.", file=sys.stderr)
    code = int(status or 1)
    if code < 0:  # by a signal, of which the shell is to know
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # the command's is there
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)
