"""Starting a process of this program: forked by a server that has imported torch and Lightning, or a fresh interpreter.

The servers of this process end with it. One whose path is in the environment is another process's, a sweep's say, and used
where it will do.
"""

import atexit
import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from lockstep import console
from lockstep.config.plan import cores
from lockstep.launchers.environment import OF_EACH_PROCESS, WARM_SERVER
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.launchers.warm_server import Request

POLL = 0.05  # seconds between two looks
PATIENCE = 120.0  # seconds that a server gets to answer, the time it takes to import torch included
EXIT_CODE_GRACE = 5.0  # seconds that it gets to send the exit code of a process that has not sent it itself
_CAN_FORK = all(hasattr(owner, name) for owner, name in ((os, "pidfd_open"), (socket, "send_fds"), (socket, "SOCK_SEQPACKET")))
# By these OpenMP settles, once, which cores its threads keep to.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


class Forked:
    """A process that a server has forked. Its exit code comes from itself, or from the server if that still answers; without
    either it counts as killed. Whether it has ended is known from its pidfd alone."""

    def __init__(self, pid: int, pidfd: int, connection: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd, self._connection = pidfd, connection

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._pidfd], [], [], 0)[0]:
            self.returncode = self._receive_exit_code()
            self._connection.close()
            os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL)
        return code

    def send_signal(self, number: int, /) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _receive_exit_code(self) -> int:
        """The process has sent its own before it ended, unless a signal has killed it: then the server, its parent, sends it."""
        self._connection.settimeout(EXIT_CODE_GRACE)
        try:
            return int(self._connection.recv(64))
        except (OSError, ValueError):  # nobody sends any more, or in time
            return -signal.SIGKILL


Process = Forked | subprocess.Popen[bytes]


class Server:
    """An import server that this process has started, in the environment of the first process that it is to fork."""

    def __init__(self, request: Request) -> None:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True)))
            self.path, self._said = str(folder / "server"), folder / "said"
            lifeline, ours = os.pipe()
            stack.callback(os.close, ours)
            stack.callback(os.close, lifeline)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(self.path)
            listener.listen()
            with self._said.open("wb") as said:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _SERVER, *_module_path(request), str(listener.fileno()), str(lifeline)],
                    env={name: value for name, value in request.environment.items() if name not in OF_EACH_PROCESS},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    pass_fds=(listener.fileno(), lifeline),
                    start_new_session=True,
                )
            listener.close()  # whoever asks a server that has died gets an error
            self._resources = stack.pop_all()

    def last_line(self) -> str:
        return " ".join(self._said.read_text(errors="replace").splitlines()[-1:])

    def end(self) -> None:
        """Ends the server; the processes that it has forked go on."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a disk that does not answer keeps even a killed process
            self._process.wait(EXIT_CODE_GRACE)
        self._resources.close()


_SERVER = """
import sys
*sys.path[:], listener, lifeline = sys.argv[1:]
from lockstep.launchers.warm_server import serve
serve(int(listener), int(lifeline))
"""


def _module_path(request: Request) -> list[str]:
    """Returns this process's sys.path, with the script's folder in the first place."""
    script_folder = str(Path(request.cwd, request.arguments[0]).resolve().parent)
    return [*sys.path] if sys.flags.safe_path else [script_folder, *sys.path[1:]]


class Processes:
    """Starts processes of this program."""

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._silent = set[str]()  # paths of servers that have not answered in time: stopped, or out of memory
        self._has_failed = False

    def start(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        lifeline: tuple[str, int],
        output: IO[bytes] | None = None,
        errors: IO[bytes] | None = None,
        cores_kept: Sequence[int] | None = None,
        fresh: bool = False,
    ) -> Process:
        """Starts a process in a session of its own, so that Ctrl-C reaches us alone, and it and its data workers end as a group.

        `lifeline` is a variable and the descriptor that it names; `output` and `errors` are this process's if none are given.
        """
        kept = sorted(cores()) if cores_kept is None else [*cores_kept]
        is_script = command[0] == sys.executable and not command[1].startswith("-")
        if _CAN_FORK and is_script and not fresh and not self._has_failed and not environment.keys() & {*_BINDING}:
            request = Request([*command[1:]], str(Path.cwd()), environment, lifeline[0], kept)
            try:
                forked = self._forked(request, [output.fileno() if output else 1, errors.fileno() if errors else 2, lifeline[1]])
            except OSError as error:
                self._has_failed = True
                console.say(f"Processes are started as fresh interpreters, each of which imports torch anew: {error}")
            else:
                if forked is not None:
                    return forked
        process = subprocess.Popen(
            command,
            env=environment | {lifeline[0]: str(lifeline[1])},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            pass_fds=(lifeline[1],),
            start_new_session=True,
        )
        if hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, kept)
        return process

    def _forked(self, request: Request, descriptors: list[int]) -> Forked | None:
        """Has the process forked by the first server that can, else by a new one; None once we are asked to stop. Raises OSError
        if no server can."""
        for path in [os.environ.get(WARM_SERVER), *(server.path for server in self._servers)]:
            if path is not None and path not in self._silent:
                try:
                    return _ask(path, request, descriptors)
                except TimeoutError:
                    self._silent.add(path)
                except OSError:
                    continue
        if not self._servers:
            atexit.register(self.end)
        server = Server(request)
        self._servers.append(server)
        try:
            return _ask(server.path, request, descriptors)
        except OSError as error:
            raise OSError(server.last_line() or str(error)) from error

    def end(self) -> None:
        """Ends the servers; the processes that they have forked go on."""
        for server in self._servers:
            server.end()
        self._servers.clear()


def _ask(path: str, request: Request, descriptors: list[int]) -> Forked | None:
    """Asks a server to fork; None once we are asked to stop. Raises TimeoutError if it does not answer, OSError if it is gone."""
    environment = request.environment | {WARM_SERVER: path}
    content = json.dumps(dataclasses.asdict(request) | {"environment": environment}).encode()
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.settimeout(PATIENCE)
        connection.connect(path)
        socket.send_fds(connection, [content], descriptors)
        due = time.monotonic() + PATIENCE
        while not select.select([connection], [], [], POLL)[0]:
            if STOP_SIGNALS.received:
                return None
            if time.monotonic() > due:
                raise TimeoutError(f"the server has not answered within {PATIENCE:g} s")
        answer, pidfds, _, _ = socket.recv_fds(connection, 1024, 1)
        word, _, rest = answer.decode().partition(" ")
        if word != "started":
            raise OSError(rest or "the server has died")
        connection.send(b"go")  # without which it ends: it may have been forked too late for us
        stack.pop_all()
        return Forked(int(rest), pidfds[0], connection)


PROCESSES = Processes()
