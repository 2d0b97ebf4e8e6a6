"""Command lines in processes forked from one that has imported everything; a fresh interpreter takes six seconds to do so.

What is forked runs the script as `__main__`, in its own session, with the environment, folder and output of a command of its
own. Only what an interpreter does before the script's first line and after its last is not tested so.
"""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PRELOADED = (
    "lockstep.callbacks",
    "lockstep.cli",
    "torch.utils.tensorboard",
    "matplotlib.figure",
    "in_process",
    "frozen",
)


class Running:
    """`python ARGUMENTS`, the script first, by its whole path, whose output goes to files: both to the end of `log`, if that is
    given. The part of subprocess.Popen that tests use."""

    def __init__(self, arguments: list[str], cwd: Path, environment: dict[str, str], log: Path | None = None) -> None:
        self.args = arguments
        self.stdout, self.stderr = (log.open("a+") if log else tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        ends = [Connection(os.dup(file.fileno()), readable=False) for file in (self.stdout, self.stderr)]
        process = multiprocessing.get_context("forkserver").Process(target=_main, args=(arguments, cwd, environment, *ends))
        process.start()
        for file in (*ends, self.stdout, self.stderr) if log else ends:
            file.close()
        self._process: Any = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Negative for a signal."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        for file in (self.stdout, self.stderr):
            file.seek(0)
        return self.stdout.read(), self.stderr.read()

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _main(arguments: list[str], cwd: Path, environment: dict[str, str], output: Connection, errors: Connection) -> None:
    """In the new process: becomes what `python ARGUMENTS` is when its script begins."""
    os.setsid()
    for descriptor, file in ((1, output), (2, errors)):
        os.dup2(file.fileno(), descriptor)
        file.close()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    errors_too = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), errors_too
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # pyright: ignore[reportAttributeAccessIssue]
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment | {"HYDRA_FULL_ERROR": "1"})  # as every command sets it before it starts others
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_start_method(None, force=True)  # of data workers: the default, not the one by which this was started
    sys.path[:0] = [str(Path(arguments[0]).resolve().parent), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    import torch  # as it was before: not in the tests' own process when it begins

    threads = int(environment["OMP_NUM_THREADS"])  # which was read when torch was imported
    torch.set_num_threads(threads)
    # A fork's first two threads may otherwise renew the pool at once, which is fatal: pytorch/pytorch#178535
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(threads))
    code = run_as_main(arguments)
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def run_as_main(arguments: list[str]) -> int:
    """Runs `python ARGUMENTS`, the script first, to its end. Returns the exit code, -SIGINT if an interrupt has ended it."""
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    code = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exception(error)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  as multiprocessing does it: waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code
