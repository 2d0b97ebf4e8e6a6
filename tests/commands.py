"""Command lines as a user types them, bounded in time, with nothing left running."""

import functools
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import warm

from lockstep.launchers.environment import WARM_SERVER
from lockstep.launchers.processes import Server
from lockstep.launchers.warm_server import Request

ROOT = Path(__file__).parents[1]
MARK = "LOCKSTEP_TEST"  # in the environment of all that a test starts
TIMEOUT = 150  # seconds
FOLLOW = 10  # seconds


def environment(**more: str) -> dict[str, str]:
    """This process's environment less what other launchers have set, with the tests' own modules importable; one thread a
    process, on whose number sums depend."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "TORCHELASTIC_", "PL_"))}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTEST_CURRENT_TEST"):
        own.pop(name, None)
    fixed = {"PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT / 'src'}", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return own | fixed | more


def python(
    *arguments: str | Path, cwd: Path, timeout: float = TIMEOUT, fresh: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` to its end; fails if a process it started outlives it. A script of ours is run in a warm process, and
    its ranks by a server that has been started before, unless it is to be a `fresh` one: whose sums round as those of any
    other fresh one do, to the bit."""
    if not fresh and str(arguments[0]).endswith(".py") and Path(arguments[0]).is_relative_to(ROOT):
        variables = {WARM_SERVER: _server().path} | environment(**env)
        code, output, errors = warm.run([*map(str, arguments)], cwd, variables, timeout)
        left = warm.left_of_server(_server()._process.pid)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"ranks left running: {left}"
        return subprocess.CompletedProcess([*map(str, arguments)], code, output, errors)
    with started(*arguments, cwd=cwd, **env) as process:
        output, errors = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@functools.cache
def _server() -> Server:
    """For the ranks of commands in the environment of most tests; another makes them start one of their own."""
    return Server(Request([str(ROOT / "train.py")], ".", environment(HYDRA_FULL_ERROR="1"), "", []))  # as every command has it


@contextmanager
def started(*arguments: str | Path, cwd: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    """`python ARGUMENTS`, running; on leaving, whatever it has left behind is ended and is a failure."""
    marked = {MARK: uuid.uuid4().hex} | environment(**env)
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=marked,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        left = _left_by(process, marked[MARK])
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left, f"left running: {left}"


def _left_by(process: subprocess.Popen[str], mark: str) -> list[int]:
    """What outlives a process that has ended. Those of a killed one follow it when they see that it is gone: in a moment."""
    deadline = time.monotonic() + (FOLLOW if process.returncode == -signal.SIGKILL else 0)
    while (left := processes_marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def processes_marked(mark: str) -> list[int]:
    """The pids of living processes that carry a test's mark; zombies have no environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def train(
    *overrides: str, cwd: Path, timeout: float = TIMEOUT, fresh: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """`python train.py OVERRIDES` on the CPU, from a folder of the test's own."""
    return python(ROOT / "train.py", "trainer.accelerator=cpu", *overrides, cwd=cwd, timeout=timeout, fresh=fresh, **env)


def runs(folder: Path) -> list[Path]:
    """The run directories below folder/logs, oldest first."""
    return sorted((path.parent for path in folder.glob("logs/*/*/status.json")), key=lambda path: path.stat().st_mtime)
