"""A process that has imported torch and Lightning once, and forks from itself those that need them; see `processes`.

It only imports. No operation of torch is run in it, no GPU is touched, and no thread of ours is left when it forks, so that what
is forked is what a fresh interpreter is after the same imports.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import logging
import os
import select
import shlex
import shutil
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from lockstep.atomic_files import stamp_of
from lockstep.imports import importing_much
from lockstep.launchers.environment import OF_EACH_PROCESS, this_rank
from lockstep.launchers.main_script import run_as_main, show_uncaught
from lockstep.launchers.process_title import set_title

# What a process that trains imports until its end. Rooms can be taken out; and what can't be imported is a matter of those who
# need it.
PRELOADED = (
    "lockstep.cli",
    "lockstep.build",
    "lockstep.callbacks",
    "lockstep.datamodules",
    "lockstep.models",
    "lockstep.nets",
    "lockstep.runs.results",
    "lockstep.runs.run",
    "lockstep.trainer.strategies",
    "torch._dynamo",  # by every optimizer's step
    "torch.utils.tensorboard",
)
LONGEST = 2**20  # bytes of a request


@dataclass(frozen=True)
class Request:
    """A process to start: what it runs, where, and the variable that names the descriptor whose end it ends with."""

    arguments: list[str]  # from the script on
    cwd: str
    environment: dict[str, str]
    lifeline: str
    cores: list[int]


class _Refused(Exception):
    """Another server could do it."""


class _OutOfDate(_Refused):
    """And this one never can again."""


class Imports:
    """What the server has imported: the state of the files then, and the environment."""

    def __init__(self) -> None:
        self._before = dict(os.environ)
        handler = logging.NullHandler()
        logging.root.addHandler(handler)  # in a run Hydra has set up the logs by now; Lightning looks, and would print by itself
        with contextlib.suppress(Exception), importing_much():  # torch's own
            for name in PRELOADED:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        logging.root.removeHandler(handler)
        self._after = dict(os.environ)
        self._files = {file: stamp_of(file) for file in map(_editable_source, list(sys.modules.values())) if file is not None}

    def check(self, environment: Mapping[str, str]) -> None:
        """Raises _Refused if a fresh interpreter would import other files, or in another environment."""
        for file, stamp in self._files.items():
            if stamp_of(file) != stamp:
                raise _OutOfDate(f"{file} has changed")
        for name in environment.keys() | self._before.keys() | self._after.keys():
            if name not in OF_EACH_PROCESS and environment.get(name) not in (self._before.get(name), self._after.get(name)):
                raise _Refused(f"{name} is another")

    def environment(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Returns the wanted environment with what the imports have changed in it."""
        changed = {name: self._after.get(name) for name in self._before | self._after}
        result = dict(wanted)
        for name, value in changed.items():
            if value == self._before.get(name) or name in OF_EACH_PROCESS:
                continue
            if value is None:
                result.pop(name, None)
            else:
                result[name] = value
        return result


def _editable_source(module: ModuleType) -> Path | None:
    """Returns the source file of a module that is not installed: a user may edit it."""
    file = getattr(module, "__file__", None)
    is_installed = file is not None and file.startswith(tuple(sysconfig.get_paths().values()))
    return None if file is None or is_installed else Path(file)


def serve(listening: int, lifeline: int) -> NoReturn:
    """Serves until the process at the other end of `lifeline` has gone, or, once the code has changed, until all forked processes
    have ended."""
    set_title("lockstep import server")
    _continue_with_parent()
    listener = socket.socket(fileno=listening)
    folder = Path(listener.getsockname()).parent
    with _ending_with(lifeline, folder):
        imports = Imports()
    gc.collect()
    gc.freeze()  # shared from here on: no collection in what is forked goes through it
    children: dict[int, tuple[int, socket.socket]] = {}  # by a descriptor that can be read when it has ended
    is_open = True
    while is_open or children:
        readable = select.select([lifeline, *children, *([listener] if is_open else [])], [], [])[0]
        if lifeline in readable:
            _leave(folder)
        for ended in children.keys() & set(readable):
            _report(ended, *children.pop(ended))
        if listener in readable:
            is_open = _answer(listener.accept()[0], imports, children, [listener.fileno(), lifeline])
            if not is_open:
                listener.close()
    os._exit(0)


def _continue_with_parent() -> None:
    """A server that is stopped when its parent ends goes on, and ends too: PR_SET_PDEATHSIG in prctl(2)."""
    ctypes.CDLL(None).prctl(1, signal.SIGCONT, 0, 0, 0)


@contextlib.contextmanager
def _ending_with(lifeline: int, folder: Path) -> Iterator[None]:
    """Within, a thread ends this process with its parent; the thread has ended when the first process is forked."""
    reader, writer = os.pipe()

    def watch() -> None:
        if lifeline in select.select([lifeline, reader], [], [])[0]:
            _leave(folder)

    thread = threading.Thread(target=watch, name="ending-with-parent", daemon=True)
    thread.start()
    yield
    os.close(writer)
    thread.join()
    os.close(reader)


def _leave(folder: Path) -> NoReturn:
    """Cleans up and exits: the parent has gone."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _report(pidfd: int, pid: int, connection: socket.socket) -> None:
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with connection, contextlib.suppress(OSError):  # who asked for it has gone
        connection.send(b"%d" % code)


def _answer(connection: socket.socket, imports: Imports, children: dict[int, tuple[int, socket.socket]], ours: list[int]) -> bool:
    """Forks the process that is asked for. Returns false if this server is out of date."""
    connection.settimeout(10)
    descriptors: list[int] = []
    try:
        content, descriptors, _, _ = socket.recv_fds(connection, LONGEST, 3)
        if not content or select.select([connection], [], [], 0)[0]:  # it has given up, and starts the process by itself
            connection.close()
            return True
        request = Request(**json.loads(content))
        imports.check(request.environment)
        connection.settimeout(None)
        if (pid := os.fork()) == 0:
            for pidfd, (_, other) in children.items():
                ours += [pidfd, other.fileno()]
            _become(request, imports, descriptors, connection, ours)
    except (OSError, ValueError, _Refused) as reason:
        with connection, contextlib.suppress(OSError):
            connection.send(f"refused {reason}".encode())
        return not isinstance(reason, _OutOfDate)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    pidfd = os.pidfd_open(pid)
    children[pidfd] = (pid, connection)
    with contextlib.suppress(OSError):
        socket.send_fds(connection, [b"started %d" % pid], [pidfd])
    return True


def _become(request: Request, imports: Imports, given: list[int], connection: socket.socket, ours: list[int]) -> NoReturn:
    """Runs in the new process: makes it what `python ARGUMENTS` is when its script begins, runs that, and exits as it would."""
    code = 1
    try:
        os.setsid()
        if connection.recv(8) != b"go":
            os._exit(0)  # who asked for it has gone, or has given up
        for number, descriptor in enumerate(given[:2], 1):  # first: what goes wrong from here on is seen
            os.dup2(descriptor, number)
        lifeline = fcntl.fcntl(given[2], fcntl.F_DUPFD_CLOEXEC, 3)
        for descriptor in (*given, *ours):
            os.close(descriptor)
        os.sched_setaffinity(0, request.cores)
        os.chdir(request.cwd)
        set_title(shlex.join([sys.executable, *request.arguments]))
        os.environ.clear()
        os.environ.update(imports.environment(request.environment) | {request.lifeline: str(lifeline)})
        _as_if_imported_here()
        code = run_as_main(request.arguments)
    except BaseException as error:
        show_uncaught(error)
    with contextlib.suppress(OSError):
        connection.send(b"%d" % (code if code == -signal.SIGINT else code & 0xFF))
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _as_if_imported_here() -> None:
    """Renews what modules have read from their surroundings, or drawn at random, when they were imported."""
    this_rank.cache_clear()
    if lightning := sys.modules.get("lightning.pytorch.utilities.rank_zero"):
        rank = this_rank()
        lightning.rank_zero_only.rank = 0 if rank is None else rank.global_rank
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # pyright: ignore[reportAttributeAccessIssue]
