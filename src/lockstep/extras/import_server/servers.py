"""The servers of this process: each has imported torch and Lightning, and forks ranks or jobs.

A server is a child of the process that it serves, and ends with it. What it forks is a child of that process too: it is waited
for like any other, whatever becomes of the server.
"""

import atexit
import contextlib
import ctypes
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from lockstep import console
from lockstep.launchers.environment import (
    ERROR_DIR,
    JOB_MARK,
    PARENT_PIPE,
    RANK_VARIABLES,
    RESTARTS,
    SWEEP_PIPE,
    SWEPT_KEYS,
    without_rank_variables,
)
from lockstep.launchers.processes import Process
from lockstep.launchers.stop_signals import STOP_SIGNALS

POLL = 0.05  # seconds between two looks
PATIENCE = 120.0  # seconds that a server gets to answer, the time it takes to import torch included
KILLED_WITHIN = 5.0  # seconds; a disk that does not answer keeps even a killed process
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)
# By these OpenMP decides, once, which cores its threads keep to.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
# In which processes that are started from here may differ although they have imported the same.
_OWN_VARIABLES = {*RANK_VARIABLES, PARENT_PIPE, SWEEP_PIPE, JOB_MARK, SWEPT_KEYS, RESTARTS, ERROR_DIR}
_OWN_VARIABLES |= {"CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "CUBLAS_WORKSPACE_CONFIG", "HYDRA_FULL_ERROR"}


@dataclass(frozen=True)
class Request:
    """A process to start: what it runs, where, the variable that names the descriptor whose end it ends with, and whether it gets
    a server of its own."""

    arguments: list[str]  # from the script on
    cwd: str
    environment: dict[str, str]
    lifeline: str
    cores: list[int]
    gets_server: bool


class Forked:
    """A child of this process that it has not started by `subprocess`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
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
            os.kill(self.pid, number)


class Server:
    """An import server of this process, for processes whose environment differs from its own only in what differs by rank."""

    def __init__(self, process: Process, requests: socket.socket, environment: Mapping[str, str]) -> None:
        self.environment = _shared(environment)
        self._process, self._requests = process, requests
        self._requests.settimeout(PATIENCE)

    @classmethod
    def start(cls, request: Request, said: IO[bytes]) -> Self:
        """Starts one for a process like this; what it says goes to a file."""
        requests, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other_end:
            process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, *_module_path(request), str(other_end.fileno())],
                env=_shared(request.environment),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(other_end.fileno(),),
                start_new_session=True,
            )
        return cls(process, requests, request.environment)

    def fork(self, request: Request, descriptors: list[int]) -> Forked | None:
        """Returns the new process; None once this one is asked to stop. Raises OSError if the server is gone, or does not answer
        in time."""
        channel, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with channel, _adopting_orphans():
            with other_end:
                content = json.dumps(dataclasses.asdict(request)).encode()
                socket.send_fds(self._requests, [content], [*descriptors, other_end.fileno()])
            due = time.monotonic() + PATIENCE
            while not select.select([channel], [], [], POLL)[0]:
                if STOP_SIGNALS.received:
                    return None
                if time.monotonic() > due:
                    raise TimeoutError(f"the server has not answered within {PATIENCE:g} s")
            answer = channel.recv(1024).decode()
            if not answer.isdigit():
                raise OSError(answer or "the server has died")
            channel.send(b"go")  # without which it ends: it may have been forked too late for us
            return Forked(int(answer))

    def end(self) -> None:
        """Ends the server; the processes that it has forked go on."""
        self._process.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILLED_WITHIN)
        self._requests.close()


_SERVER = """
import sys
*sys.path[:], requests = sys.argv[1:]
from lockstep.extras.import_server.server import begin
begin(int(requests))
"""


def _shared(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in without_rank_variables(environment).items() if name not in _OWN_VARIABLES}


def _module_path(request: Request) -> list[str]:
    """Returns this process's sys.path, with the script's folder in the first place."""
    script_folder = str(Path(request.cwd, request.arguments[0]).resolve().parent)
    return [*sys.path] if sys.flags.safe_path else [script_folder, *sys.path[1:]]


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Within, what a child of this process has started becomes a child of this one when its parent ends."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class ImportServers:
    """Those of this process, one for each environment."""

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._has_failed = False

    def start(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        lifeline: tuple[str, int],
        streams: tuple[IO[bytes] | None, IO[bytes] | None],
        cores: list[int],
        starts_ranks: bool,
    ) -> Forked | None:
        """Has a script of this interpreter's forked; None where that can't be done, or this process is asked to stop."""
        is_script = command[0] == sys.executable and not command[1].startswith("-")
        if not is_script or sys.platform != "linux" or self._has_failed or environment.keys() & {*_BINDING}:
            return None
        request = Request([*command[1:]], str(Path.cwd()), environment, lifeline[0], cores, starts_ranks)
        output, errors = (number if stream is None else stream.fileno() for number, stream in enumerate(streams, 1))
        try:
            return self._fork(request, [output, errors, lifeline[1]])
        except OSError as error:
            self._has_failed = True
            console.say(f"Processes are started as fresh interpreters, each of which imports torch anew: {error}")
            return None

    def _fork(self, request: Request, descriptors: list[int]) -> Forked | None:
        """Has the process forked by a server of its environment, if there is one that answers, else by a new one; None once we
        are asked to stop. Raises OSError if no server can."""
        for server in [one for one in self._servers if one.environment == _shared(request.environment)]:
            try:
                return server.fork(request, descriptors)
            except OSError:  # it has died, is stopped, or has left because the code has changed
                self._servers.remove(server)
                server.end()
        with tempfile.TemporaryFile() as said:
            server = Server.start(request, said)
            self.add(server)
            try:
                return server.fork(request, descriptors)
            except OSError as error:
                said.seek(0)
                last_line = said.read().decode(errors="replace").splitlines()[-1:]
                raise OSError(*last_line or [str(error)]) from error

    def add(self, server: Server) -> None:
        self._servers.append(server)
        atexit.register(self.end)

    def end(self) -> None:
        """Ends the servers; the processes that they have forked go on."""
        for server in self._servers:
            server.end()
        self._servers.clear()


SERVERS = ImportServers()
