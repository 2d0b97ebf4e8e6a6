"""A process that has imported torch and Lightning, and forks the commands that a person calls; see `client`.

Between a command and its client is a keeper, a fork too, whose only child the command is: it passes signals on, stops and
continues the command with the client, hangs it up when the client is gone, and returns how it has ended. So a server can end, or
be killed, while what it has forked goes on. Nothing is read from a connection but who is at its other end, and what `python
SCRIPT ARGUMENTS` is started with.
"""

import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import site
import socket
import sys
import time
from pathlib import Path
from typing import IO, Any, NoReturn

from lockstep.atomic_files import is_like, read_stamp
from lockstep.extras.import_server.process_title import set_title
from lockstep.extras.import_server.server import LONGEST, Imports, become, give_server, set_environment
from lockstep.extras.import_server.servers import PR_SET_PDEATHSIG, prctl
from lockstep.extras.warm import client
from lockstep.launchers.cluster import stat

POLL = 0.1  # seconds between two looks at whether a client is stopped
LOOK = 5.0  # seconds between two looks at whether commands have ended
OF_TERMINALS = {signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH, signal.SIGSTOP, signal.SIGCONT}
SHAPE = {"arguments": [str], "cwd": str, "environment": {str: str}}  # of a request


def main() -> None:
    """Serves processes like this one until for as many seconds as the first argument says there was no command. Ends at once
    where another server does, or where there is no place to listen."""
    if (path := client.address()) is None:
        return
    for number in client.PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    with path.with_suffix(".lock").open("w") as lock, contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        set_title("lockstep warm server")
        serve(path, Warm(), float(sys.argv[1]), lock)


class Warm(Imports):
    """What was imported, with the state of every file of it, installed or not."""

    def __init__(self) -> None:
        super().__init__()
        found = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
        installed = {*site.getsitepackages(), site.getusersitepackages()}  # whose entries are packages, or name where they are
        self._files = {path: read_stamp(path) for path in {Path(name) for name in {*found.values(), *installed} if name}}
        self._top = {name: Path(file) for name, file in found.items() if file is not None and "." not in name}
        gc.collect()
        gc.freeze()

    def are_those_of(self, request: dict[str, Any]) -> bool:
        """Returns whether a fresh interpreter would find none of it in the script's folder, or in the project's src, instead."""
        own = Path(request["cwd"], request["arguments"][0]).resolve().parent
        for path in (path for name in (own, own / "src", Path(request["cwd"], "src")) for path in name.glob("*")):
            file = path / "__init__.py" if path.is_dir() else path
            if file.suffix == ".py" and file.is_file() and self._top.get(path.stem, file) != file:
                return False
        return True


def serve(path: Path, imports: Warm, patience: float, lock: IO[str]) -> None:
    """Until nobody has come for `patience` seconds, or its socket is gone: a logout removes the runtime directory, and a later
    server may listen by the same name."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        own = read_stamp(path)
        listener.listen()
        listener.settimeout(min(LOOK, patience))
        used = time.monotonic()
        while read_stamp(path) == own and (now := time.monotonic()) - (used := now if _something_runs() else used) < patience:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                used = time.monotonic()
                with connection:
                    if not imports.are_current():
                        break
                    if client.peer(connection)[1] == os.getuid() and os.fork() == 0:
                        listener.close()
                        lock.close()
                        _keep(connection, imports)
    if read_stamp(path) == own:
        path.unlink()


def _something_runs() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _keep(connection: socket.socket, imports: Warm) -> NoReturn:
    """Runs in a process of its own for each connection."""
    client.is_served = True
    with contextlib.suppress(OSError, ValueError):  # its client has gone, or is none
        connection.send(client.HERE)
        content, given, _, _ = socket.recv_fds(connection, LONGEST, 3)
        request = json.loads(content)
        if is_like(request, SHAPE) and request["arguments"] and len(given) == 3 and imports.are_those_of(request):
            connection.send(client.READY)
            if connection.recv(len(client.GO)) == client.GO:
                _run(request, given, connection, imports)
    os._exit(0)


def _run(request: dict[str, Any], given: list[int], connection: socket.socket, imports: Warm) -> None:
    caller, keeper = client.peer(connection)[0], os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, client.PASSED_ON)  # until the command has its own handlers
    if (command := os.fork()) == 0:

        def prepare() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
            os.setsid()
            connection.close()
            for number, descriptor in enumerate(given):
                os.dup2(descriptor, number)
                os.close(descriptor)
            set_environment(request["environment"] | imports.environment)
            _handle_as(caller)  # and as such the server that it is given, and whom that forks
            give_server(imports)
            if os.getppid() != keeper:
                os._exit(0)

        become(request["arguments"], request["cwd"], prepare)
    set_title(f"lockstep warm keeper {command}")
    for descriptor in given:
        os.close(descriptor)
    _watch(command, connection, caller)
    connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]))


def _handle_as(caller: int) -> None:
    """Handles signals as an interpreter that has begun: what its caller ignores, by nohup say, is ignored."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{caller}/status").read_text().splitlines())
    for number in client.PASSED_ON:
        is_ignored = int(status["SigIgn"], 16) >> (number - 1) & 1
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if is_ignored else default)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, client.PASSED_ON)


def _watch(command: int, connection: socket.socket, caller: int) -> None:
    """Until the command has ended, it gets what its client gets."""
    ended, connections, was_stopped = os.pidfd_open(command), [connection], False
    while ended not in (ready := select.select([ended, *connections], [], [], POLL)[0]):
        if connection in ready:
            said = connection.recv(16)
            if not said:  # the client was killed
                connections.clear()
            _send(command, int(said or signal.SIGHUP))
        is_stopped = bool(connections) and stat(caller)[0] == "T"
        if is_stopped != was_stopped:
            _send(command, signal.SIGSTOP if is_stopped else signal.SIGCONT)
        was_stopped = is_stopped


def _send(command: int, number: int) -> None:
    """Sends it to the process; to its group, which it leads in time, what a terminal sends."""
    to = os.killpg if number in OF_TERMINALS else os.kill
    with contextlib.suppress(ProcessLookupError):
        to(command, number)
