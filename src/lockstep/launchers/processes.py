"""Processes of this program: forked from one server that has imported torch and Lightning, or spawned."""

import atexit
import contextlib
import ctypes
import importlib.util
import inspect
import logging
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from lockstep.config.plan import cores
from lockstep.launchers.cluster import stat
from lockstep.launchers.environment import this_rank
from lockstep.launchers.rank import process_group
from lockstep.launchers.stop_signals import SIGNALS, STOP_SIGNALS

PRELOAD = "LOCKSTEP_PRELOAD"  # modules of this package that the server imports besides those that every run needs
_MAIN = "__mp_main__"  # multiprocessing's name of the main module in a new process
KILL_GRACE = 1.0  # seconds between SIGTERM and SIGKILL
PATIENCE = 10.0  # seconds in which a process that was killed is gone
_PR_SET_PDEATHSIG = 1  # prctl(2)
SERVER_DIED = 255  # the exit code that multiprocessing has for a process whose fork server is gone (popen_forkserver.py)


@dataclass(frozen=True)
class Function:
    """A function of the program that was started, whose module has no name by which another process could import it."""

    file: str
    name: str
    is_wrapped: bool  # as the function under @hydra.main

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Callable[..., Any]:
        is_found = getattr(sys.modules[function.__module__], function.__name__, None) is function
        if is_found and function.__module__ not in ("__main__", _MAIN):
            return function
        return cls(inspect.unwrap(function).__code__.co_filename, function.__name__, not is_found)

    def __call__(self, *arguments: Any) -> Any:
        module = sys.modules.get(_MAIN)
        if getattr(module, "__file__", None) != self.file:
            spec = importlib.util.spec_from_file_location(_MAIN, self.file)
            assert spec is not None
            assert spec.loader is not None
            sys.modules["__main__"] = sys.modules[_MAIN] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        function = getattr(module, self.name)
        return (inspect.unwrap(function) if self.is_wrapped else function)(*arguments)


@dataclass(frozen=True)
class Surroundings:
    """Surroundings of a new process. output: the file that its output is appended to; None for this process's."""

    title: str
    environment: Mapping[str, str]
    output: Path | None = None
    cores: Sequence[int] = ()
    ignored: frozenset[int] = frozenset()


class Process:
    """A process that was started here."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self.pid, self._process = process.pid, process

    def poll(self) -> int | None:
        """Return the exit code; None while it runs, SERVER_DIED if it is not known."""
        code = self._process.exitcode
        return None if code == SERVER_DIED and is_alive(self.pid) else code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout: float) -> None:
        self._process.join(timeout)


def is_alive(pid: int) -> bool:
    try:
        return stat(pid)[0] not in "ZX"
    except OSError:
        return False


def start(
    function: Callable[..., Any],
    *arguments: Any,
    title: str,
    environment: Mapping[str, str],
    output: Path | None = None,
    cores_kept: Iterable[int] | None = None,
    fresh: bool = False,
    imports: Iterable[str] = (),
) -> Process:
    """Start a process that calls `function(*arguments)`, in a session of its own, and ends when this process has ended.

    Args:
        title: Its name in ps, top and nvidia-smi.
        cores_kept: The cores that it keeps to; this process's by default.
        fresh: Spawn an interpreter, which imports torch anew.
        imports: Modules of this package that it will need, which the server imports once for all.
    """
    if output is not None:
        output.open("ab").close()  # raises OSError here rather than in the new process
    ignored = frozenset(number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN)  # nohup
    kept = sorted(cores() if cores_kept is None else cores_kept)
    surroundings = Surroundings(title, dict(environment), output, kept, ignored)
    process = _context(fresh).Process(target=_begin, args=(surroundings, function, arguments), name=title)
    os.environ[PRELOAD] = " ".join(sorted(imports))
    try:
        with _main_hidden():
            process.start()
    finally:
        del os.environ[PRELOAD]
    return Process(process)


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep multiprocessing from importing the main module before the new process has its environment: Function does so."""
    main = vars(sys.modules["__main__"])
    before = {name: main.get(name) for name in ("__file__", "__spec__")}
    main.update(dict.fromkeys(before))
    try:
        yield
    finally:
        main.update(before)


def _context(fresh: bool) -> Any:
    if fresh or sys.platform != "linux":  # on macOS torch does not survive a fork
        return multiprocessing.get_context("spawn")
    if multiprocessing.parent_process() is not None and "torch" in sys.modules:  # a sweep's job forks its ranks itself
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lockstep.launchers.preload"])
    return context


def _begin(surroundings: Surroundings, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Run in the new process: make it like one that was started by hand, and exit as one."""
    os.setsid()
    set_title(surroundings.title)  # found by the environment's place in memory, which is as it was
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)  # for data workers, which would else outlive this process
        os.sched_setaffinity(0, surroundings.cores)
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid == os.getppid():  # forked by the parent itself, whose later forks hold the pipe, too
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with_parent, name="follow-parent", daemon=True).start()
    STOP_SIGNALS.stop_listening()  # with the handlers of the process that this is a fork of
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN if number in surroundings.ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the server has blocked them
    _forget_exit_functions()
    began_in = vars(multiprocessing.process)["ORIGINAL_DIR"]  # pyright: ignore[reportAttributeAccessIssue]  before job.chdir
    sys.argv[0] = str(Path(began_in or "", sys.argv[0]))
    os.environ.clear()
    os.environ.update(surroundings.environment)
    this_rank.cache_clear()
    if surroundings.output is None:  # the terminal's: breakpoint() reads it, where multiprocessing has put /dev/null
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    else:
        output = os.open(surroundings.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for descriptor, file in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(file, descriptor)
    _renew_imported()
    code: Any = 0
    if signal.SIGINT not in surroundings.ignored:  # until here it ends the process without a trace
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        function(*arguments)
    except SystemExit as left:
        code = left.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    if code and process_group() is not None:
        os._exit(code if isinstance(code, int) else 1)  # Python would wait for collectives that other ranks may not come to
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  as multiprocessing does: waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def set_title(title: str) -> None:
    """Name this process in ps, top and nvidia-smi."""
    os.environ["SPT_NOENV"] = "1"  # read when setproctitle is first used: /proc/PID/environ stays as it is
    from setproctitle import setproctitle, setthreadtitle

    setproctitle(title)
    setthreadtitle(title.replace(" ", "-"))  # SLURM's proctrack/linuxproc splits /proc/PID/stat at spaces
    del os.environ["SPT_NOENV"]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _forget_exit_functions() -> None:
    """Drop the exit functions of the server, or of the job that this process is a fork of."""
    for finalizer in list(weakref.finalize._registry):  # pyright: ignore[reportAttributeAccessIssue]
        finalizer.atexit = False
    atexit._clear()
    for function in (logging.shutdown, multiprocessing.util._exit_function, weakref.finalize._exitfunc):  # pyright: ignore
        atexit.register(function)


def _renew_imported() -> None:
    """Renew what modules have read from the environment, or drawn at random, when the server imported them."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if (torch := sys.modules.get("torch")) and threads.isdecimal():
        torch.set_num_threads(max(1, int(threads)))
    if lightning := sys.modules.get("lightning.pytorch.utilities.rank_zero"):
        rank = this_rank()
        lightning.rank_zero_only.rank = 0 if rank is None else rank.global_rank
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def end(processes: Sequence[Process]) -> None:
    """End the processes that still run, then whatever their process groups still hold."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + KILL_GRACE
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in processes:
        kill_group(process.pid)
        process.wait(PATIENCE)  # a disk that does not answer keeps even a killed process


def kill_group(pid: int) -> None:
    """Kill a process and its group, data workers included, and its children's groups where there is a /proc: a child that is
    suspended, or stuck with Python's lock, would not follow. Do nothing if they are gone."""
    groups = [pid]
    with contextlib.suppress(OSError):
        groups += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
