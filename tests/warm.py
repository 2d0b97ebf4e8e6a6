"""Command lines in processes forked from one that has imported everything; a fresh interpreter takes six seconds to do so.

What is forked runs the script as `__main__`, in its own session, with the environment, folder and output of a command of its
own. Only what an interpreter does before the script's first line is not tested so; tests of signals start real ones.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lockstep.launchers.main_script import run_as_main

PRELOADED = (
    "lockstep.parity.observe",
    "lockstep.callbacks",
    "lockstep.cli",
    "torch.utils.tensorboard",
    "matplotlib.figure",
    "fits",
)

GRACE = 20.0  # seconds; a fork server of its own, say, ends when it has imported what it was told to


class TimedOut(AssertionError):
    """A command did not end in time; it has been killed."""


def run(arguments: list[str], cwd: Path, environment: dict[str, str], timeout: float) -> tuple[int, str, str]:
    """The exit code of `python ARGUMENTS` (negative for a signal), what it said on stdout, and on stderr."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_main, args=(arguments, str(cwd), environment, str(output), str(errors)))
        process.start()
        process.join(timeout)
        code, left = process.exitcode, _left_of(process.pid)
        for survivor in left:
            os.kill(survivor, signal.SIGKILL)
        process.join()
        if code is None:
            raise TimedOut(f"{' '.join(arguments)}: no end within {timeout:g} s\n{output.read_text()}\n{errors.read_text()}")
        assert not left, f"left running: {left}"
        return code, output.read_text(), errors.read_text()


def _main(arguments: list[str], cwd: str, environment: dict[str, str], output: str, errors: str) -> None:
    """In the new process: becomes what `python ARGUMENTS` is when its script begins."""
    os.setsid()
    for descriptor, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # pyright: ignore[reportAttributeAccessIssue]
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[:0] = [str(Path(arguments[0]).resolve().parent), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    os._exit(run_as_main(arguments) & 0xFF)


def _left_of(leader: int | None) -> list[int]:
    """What lives on of a session; what was told to end is given a moment."""
    return _after_a_moment(lambda: _living(lambda fields: int(fields[3]) == leader))


def left_of_server(pid: int) -> list[int]:
    """What lives on of what it has forked."""
    return _after_a_moment(lambda: _living(lambda fields: int(fields[1]) == pid))


def _after_a_moment(living: Callable[[], list[int]]) -> list[int]:
    deadline = time.monotonic() + GRACE
    while (left := living()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _living(is_meant: Callable[[list[str]], bool]) -> list[int]:
    """The processes that are meant, by the fields of proc(5) from the state on; zombies are none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if is_meant(fields) and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found
