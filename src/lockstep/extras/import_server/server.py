"""A process that has imported torch and Lightning once, and forks from itself those that need them; see `servers`.

It only imports, but for what a config's events do when it has (`RunEvents.imported`). No GPU is touched, and no thread of ours is
left when it forks, so that what is forked is what a fresh interpreter is after the same imports.
"""

import contextlib
import gc
import importlib
import json
import logging
import os
import shlex
import signal
import socket
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from omegaconf import OmegaConf

from lockstep.atomic_files import Stamp, read_stamp
from lockstep.config.class_checks import rules_in
from lockstep.config.construct import Factory
from lockstep.config.targets import targets_in
from lockstep.extras.import_server.like_config import LikeConfig
from lockstep.extras.import_server.main_script import run_as_main, show_uncaught
from lockstep.extras.import_server.process_title import set_title
from lockstep.extras.import_server.servers import PR_SET_PDEATHSIG, SERVERS, Forked, Request, Server, prctl
from lockstep.imports import importing_much
from lockstep.launchers.environment import this_rank
from lockstep.launchers.inherited_config import read_content
from lockstep.places import read_settings
from lockstep.runs.record import installed

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
    "torch.utils.serialization",
    "torch.utils.tensorboard",
    "tensorboard.plugins.hparams.metadata",
    *(f"PIL.{name}ImagePlugin" for name in ("Bmp", "Gif", "Jpeg", "Png", "Ppm")),  # of which it asks each who writes PNG
)
LONGEST = 2**20  # bytes of a request
_PACKAGE = __name__.partition(".")[0]


class Imports:
    """What a server has imported: the state of the files then, and what the imports have set in the environment."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self._files: dict[Path, Stamp | None] = {}
        self.config = LikeConfig({})
        self._import(PRELOADED)
        installed()  # looks it up, for all forks

    def read(self, arguments: Sequence[str]) -> None:
        """Imports and looks up what the config of `python ARGUMENTS` names in this package, the first time: the processes of a
        run or of a sweep are made of much the same. What importing a user's own modules does is left to the process that needs
        them."""
        if self.config.content or not (content := read_content(arguments).get("config")):
            return
        self.config = LikeConfig(content)
        targets = {str(target) for _, target in targets_in(content)}
        own = sorted(name for name in targets if name.startswith(f"{_PACKAGE}."))
        self._import([name.rpartition(".")[0] for name in own])
        with contextlib.suppress(Exception):
            nodes = {str(number): {"_target_": name} for number, name in enumerate(own)}
            list(rules_in(OmegaConf.create(nodes)))
            for name, node in nodes.items():
                Factory(name, node)

    def _import(self, names: Sequence[str]) -> None:
        before = dict(os.environ)
        gc.disable()
        handler = logging.NullHandler()
        logging.root.addHandler(handler)  # in a run Hydra has set up the logs by now; Lightning looks, and would print by itself
        with contextlib.suppress(Exception), importing_much():  # torch's own
            for name in names:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        logging.root.removeHandler(handler)
        self.environment |= {name: value for name, value in os.environ.items() if before.get(name) != value}
        for file in map(_editable_source, list(sys.modules.values())):
            if file is not None and file not in self._files:
                self._files[file] = read_stamp(file)
        for finalizer in _finalizers():
            finalizer.atexit = False  # torch's take its operators apart, one by one: that is not for each process that is forked
        gc.freeze()  # shared from here on: no collection in what is forked goes through it
        gc.enable()

    def are_current(self) -> bool:
        """Returns whether a fresh interpreter would import the same files."""
        return all(read_stamp(file) == stamp for file, stamp in self._files.items())


def _finalizers() -> Iterator["weakref.finalize[..., Any]"]:
    """Yields those of all objects: a finalizer is what its weak reference to the object calls."""
    for thing in filter(weakref.getweakrefcount, gc.get_objects()):
        for reference in weakref.getweakrefs(thing):
            if isinstance(reference, weakref.ref) and isinstance(reference.__callback__, weakref.finalize):
                yield reference.__callback__


def _editable_source(module: ModuleType) -> Path | None:
    """Returns the source file of a module that is not installed: a user may edit it."""
    file = getattr(module, "__file__", None)
    is_installed = file is not None and file.startswith(tuple(sysconfig.get_paths().values()))
    return None if file is None or is_installed else Path(file)


def begin(requests: int) -> NoReturn:
    """Runs in a fresh interpreter: imports, and serves."""
    set_title("lockstep import server")
    _end_with_parent()
    serve(socket.socket(fileno=requests), Imports())


def give_server(imports: Imports) -> None:
    """Gives this process, which was forked and is still as its server was, a server of its own."""
    requests, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    held = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # what is raised while Python forks is lost
    pid = os.fork()
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    if pid == 0:
        set_title("lockstep import server")
        os.setsid()  # as one that is started: what a terminal sends is for whom it serves
        _end_with_parent()
        requests.close()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # whoever reads what this process prints sees its end
            os.dup2(nowhere, descriptor)
        serve(other_end, imports)
    other_end.close()
    SERVERS.add(Server(Forked(pid), requests, os.environ))


def _end_with_parent() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(requests: socket.socket, imports: Imports) -> NoReturn:
    """Forks what is asked for, until the process at the other end has gone or the code has changed."""
    while True:
        content, descriptors, _, _ = socket.recv_fds(requests, LONGEST, 4)
        if not content or not imports.are_current():
            os._exit(0)
        request = Request(**json.loads(content))
        imports.read(request.arguments)
        *given, answers = descriptors
        with socket.socket(fileno=answers) as channel, contextlib.suppress(OSError):  # who has asked for it has gone
            try:
                pid = _fork_for_parent()
            except OSError as error:
                channel.send(str(error).encode())
            else:
                if pid == 0:
                    requests.close()
                    _become(request, imports, given, channel)
                channel.send(b"%d" % pid)
        for descriptor in given:
            os.close(descriptor)


def _fork_for_parent() -> int:
    """Forks a process that is a child of this one's parent, to which orphans fall while it asks. Returns its pid, 0 in itself."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(OSError):
            if (pid := os.fork()) == 0:
                os.close(reader)
                os.close(writer)
                return 0
            os.write(writer, b"%d" % pid)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        if not (pid := answer.readline()):
            raise OSError("there can be no more processes")
    return int(pid)


def _become(request: Request, imports: Imports, given: list[int], channel: socket.socket) -> NoReturn:
    """Runs in the new process, the one that was asked for."""

    def prepare() -> None:
        os.setsid()
        if channel.recv(8) != b"go":
            os._exit(0)  # who asked for it has gone, or has given up
        channel.close()
        output, errors, lifeline = given
        for number, descriptor in ((1, output), (2, errors)):  # first: what goes wrong from here on is seen
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.set_inheritable(lifeline, False)
        set_environment(request.environment | imports.environment | {request.lifeline: str(lifeline)})
        if request.gets_server:
            give_server(imports)
        imports.config.make(request.arguments)
        os.sched_setaffinity(0, request.cores)

    become(request.arguments, request.cwd, prepare)


def set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def become(arguments: list[str], cwd: str, prepare: Callable[[], None]) -> NoReturn:
    """Runs in a forked process, which has its streams and its environment from `prepare`: makes it what `python ARGUMENTS` is
    when its script begins, runs that, and exits as it would."""
    try:
        prepare()
        os.chdir(cwd)
        set_title(shlex.join([sys.executable, *arguments]))
        _as_if_imported_here()
        code = run_as_main(arguments)
    except BaseException as error:
        show_uncaught(error)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _as_if_imported_here() -> None:
    """Renews what modules have read from their surroundings, or drawn at random, when they were imported."""
    read_settings.cache_clear()
    this_rank.cache_clear()
    if lightning := sys.modules.get("lightning.pytorch.utilities.rank_zero"):
        rank = this_rank()
        lightning.rank_zero_only.rank = 0 if rank is None else rank.global_rank
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # pyright: ignore[reportAttributeAccessIssue]
