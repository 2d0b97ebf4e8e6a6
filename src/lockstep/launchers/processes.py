"""Processes of this program, forked from one server that has imported torch and Lightning, or spawned."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

from lockstep.launchers.environment import this_rank
from lockstep.launchers.rank import end_with, leave
from lockstep.launchers.stop_signals import SIGNALS, STOP_SIGNALS

_PR_SET_PDEATHSIG = 1  # prctl(2)
SERVER_DIED = 255  # multiprocessing's exit code of a process whose fork server has died (popen_forkserver.py)


def importable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that other processes can import; a function of the program itself is imported by the program's path."""
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
        """Return the exit code; None while the process runs, SERVER_DIED if the code is unknown."""
        code = self._process.exitcode
        return None if code == SERVER_DIED and is_alive(self.pid) else code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout: float) -> None:
        self._process.join(timeout)


def start(
    function: Callable[..., Any],
    *arguments: Any,
    title: str,
    environment: Mapping[str, str],
    output: Path | None = None,
    cores: Sequence[int] = (),
    fresh: bool = False,
) -> Process:
    """Start a process in a new session that calls `function(*arguments)`, and that ends when this process ends.

    Args:
        title: Name of the process in ps, top and nvidia-smi.
        output: File that its output is appended to; by default it shares this process's output.
        cores: CPU cores that it may use; by default those of this process.
        fresh: Spawn a new interpreter, which imports torch itself.
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
    """Prevent multiprocessing from importing the program before the new process has its environment; see `importable`."""
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
    """Set up the new process like one started from a shell, call the function, and exit like one."""
    os.setsid()
    set_title(title)  # before the environment changes, by whose address setproctitle finds the title
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with(parent.sentinel)
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)  # for data workers, which would otherwise outlive this process
        if cores:
            os.sched_setaffinity(0, cores)
        if parent.pid == os.getppid():  # forked by the parent itself, whose later forks inherit the pipe
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if "lockstep.launchers.preload" in sys.modules:  # a fork of the server, or of a job that is one
        atexit._clear()  # their exit functions
    STOP_SIGNALS.stop_listening()  # remove the handlers inherited by the fork
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the server has blocked them
    os.environ.clear()
    os.environ.update(environment)
    _renew_imported()
    if output is None:  # breakpoint() reads the terminal, which multiprocessing has replaced by /dev/null
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    else:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for descriptor, source in enumerate((os.open(os.devnull, os.O_RDONLY), file, file)):
            os.dup2(source, descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        function(*arguments)
    except SystemExit as left:
        leave(left.code)
    finally:  # multiprocessing skips these
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  waits for threads
        atexit._run_exitfuncs()


def set_title(title: str) -> None:
    """Name this process in ps, top and nvidia-smi."""
    os.environ["SPT_NOENV"] = "1"  # read at setproctitle's first use; keeps /proc/PID/environ unchanged
    setproctitle(title)


def _renew_imported() -> None:
    """Update values that modules read from the environment when the server imported them."""
    this_rank.cache_clear()
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if (torch := sys.modules.get("torch")) and threads.isdecimal():
        torch.set_num_threads(max(1, int(threads)))
    if lightning := sys.modules.get("lightning.pytorch.utilities.rank_zero"):
        rank = this_rank()
        lightning.rank_zero_only.rank = 0 if rank is None else rank.global_rank


def kill_group(pid: int) -> None:
    """Kill what is left of a process and its group, data workers included. With a /proc, also kill the groups of its children,
    because a rank that is suspended or waits for the GIL does not follow it."""
    groups = [pid]
    with contextlib.suppress(OSError):
        groups += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def stat(pid: int) -> list[str]:
    """Return the fields of proc(5) from the third on: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_alive(pid: int) -> bool:
    try:
        return stat(pid)[0] not in "ZX"
    except OSError:
        return False
