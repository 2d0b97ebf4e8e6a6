"""Processes of this program: forked from one server that has imported torch and Lightning, or spawned."""

import atexit
import contextlib
import ctypes
import functools
import multiprocessing
import multiprocessing.spawn
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from lockstep.launchers.cluster import stat
from lockstep.launchers.environment import this_rank
from lockstep.launchers.rank import end_with, process_group
from lockstep.launchers.stop_signals import SIGNALS, STOP_SIGNALS

KILL_GRACE = 1.0  # seconds between SIGTERM and SIGKILL
PATIENCE = 10.0  # seconds in which a process that was killed is gone
_PR_SET_PDEATHSIG = 1  # prctl(2)
SERVER_DIED = 255  # the exit code that multiprocessing has for a process whose fork server is gone (popen_forkserver.py)


def importable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that other processes can import: one of the program itself by the program's path."""
    if function.__module__ not in ("__main__", "__mp_main__"):  # the latter is multiprocessing's name of the program
        return function
    return functools.partial(_call_in_program, function.__code__.co_filename, function.__name__)


def _call_in_program(file: str, name: str, *arguments: Any) -> Any:
    multiprocessing.spawn.import_main_path(file)
    return getattr(sys.modules["__main__"], name)(*arguments)


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
    cores: Sequence[int] = (),
    fresh: bool = False,
) -> Process:
    """Start a process that calls `function(*arguments)`, in a session of its own, and ends when this process has ended.

    Args:
        title: Its name in ps, top and nvidia-smi.
        output: The file that its output is appended to; this process's by default.
        cores: The cores that it keeps to; this process's by default.
        fresh: Spawn an interpreter, which imports torch anew.
    """
    if output is not None:
        output.open("ab").close()  # raises OSError here rather than in the new process
    surroundings = (title, dict(environment), output, cores)
    process = _context(fresh).Process(target=_begin, args=(*surroundings, function, arguments), name=title)
    with _main_hidden():
        process.start()
    return Process(process)


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep multiprocessing from importing the program before the new process has its environment; see `importable`."""
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


def _begin(
    title: str,
    environment: Mapping[str, str],
    output: Path | None,
    cores: Sequence[int],
    function: Callable[..., Any],
    arguments: Sequence[Any],
) -> None:
    """Run in the new process: make it like one that was started by hand, and exit as one."""
    os.setsid()
    set_title(title)  # found by the environment's place in memory, which is as it was
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with(parent.sentinel)
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)  # for data workers, which would else outlive this process
        if cores:
            os.sched_setaffinity(0, cores)
        if parent.pid == os.getppid():  # forked by the parent itself, whose later forks hold the pipe, too
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    STOP_SIGNALS.stop_listening()  # with the handlers of the process that this is a fork of
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the server has blocked them
    if "lockstep.launchers.preload" in sys.modules:  # a fork of the server, or of a job that is one
        atexit._clear()  # their exit functions
    began_in = vars(multiprocessing.process)["ORIGINAL_DIR"]  # pyright: ignore[reportAttributeAccessIssue]  before job.chdir
    sys.argv[0] = str(Path(began_in or "", sys.argv[0]))
    os.environ.clear()
    os.environ.update(environment)
    _renew_imported()
    if output is None:  # the terminal's: breakpoint() reads it, where multiprocessing has put /dev/null
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    else:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for descriptor, source in enumerate((os.open(os.devnull, os.O_RDONLY), file, file)):
            os.dup2(source, descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        function(*arguments)
    except SystemExit as left:
        if isinstance(left.code, int) and left.code and process_group() is not None:
            os._exit(left.code)  # Python would wait for collectives that other ranks may not come to
        raise
    finally:  # which multiprocessing leaves out
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  waits for threads
        atexit._run_exitfuncs()


def set_title(title: str) -> None:
    """Name this process in ps, top and nvidia-smi."""
    os.environ["SPT_NOENV"] = "1"  # read when setproctitle is first used: /proc/PID/environ stays as it is
    from setproctitle import setproctitle

    setproctitle(title)
    del os.environ["SPT_NOENV"]


def _renew_imported() -> None:
    """Renew what modules have read from the environment when the server imported them."""
    this_rank.cache_clear()
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if (torch := sys.modules.get("torch")) and threads.isdecimal():
        torch.set_num_threads(max(1, int(threads)))
    if lightning := sys.modules.get("lightning.pytorch.utilities.rank_zero"):
        rank = this_rank()
        lightning.rank_zero_only.rank = 0 if rank is None else rank.global_rank


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
