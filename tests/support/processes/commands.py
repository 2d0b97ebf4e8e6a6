"""Command lines as a user types them, bounded in time, with nothing left running."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked

ROOT = Path(__file__).parents[3]
PLAIN = f"hydra.searchpath=[file://{ROOT / 'tests' / 'support' / 'plain_conf'}]"  # model=mine datamodule=mine: plain Lightning
TIMEOUT = 150  # seconds
LONG = 400  # of what takes 15 alone: the session of the tests gets no more of the processor than each that they start (sched(7))
GRACE = 20  # seconds for what follows a killed process, and for a server that is still importing


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, which finds the tests' modules, less what launchers have set; with one thread a process,
    on whose number sums depend."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "TORCHELASTIC_", "PL_"))}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTEST_CURRENT_TEST"):
        own.pop(name, None)
    return own | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | more


def python(
    *arguments: str | Path, cwd: Path, timeout: float = TIMEOUT, fresh: bool = False, code: int | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` to its end, with exit code `code` if that is given; see `started`."""
    output, errors = "", ""
    with started(*arguments, cwd=cwd, fresh=fresh, **env) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as late:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # what it has left may hold its output open
                output, errors = process.communicate(timeout=GRACE)
            raise AssertionError(f"{arguments}: no end within {timeout:g} s\n{output}\n{errors}") from late
    done = subprocess.CompletedProcess(process.args, process.wait(), output, errors)
    assert code in (None, done.returncode), f"{arguments}: ended with {done.returncode}\n{output}\n{errors}"
    return done


@contextmanager
def started(
    *arguments: str | Path, cwd: Path, fresh: bool = False, **env: str
) -> Iterator["subprocess.Popen[str] | forked.Running"]:
    """Start `python ARGUMENTS`. What it leaves running in its folder is ended, and fails the test.

    A script that is named by its whole path is forked from a process that has imported everything, and so are its ranks and jobs.
    With `fresh` it has an interpreter of its own, and starts a server for them: for how one begins and ends, for sums that are to
    round as those of any other command do, to the bit, for what becomes of servers, and for pipes that are read or closed before
    its end.
    """
    command, there = [*map(str, arguments)], {*living_in(cwd)}
    if command[0].endswith(".py") and Path(command[0]).is_absolute() and not fresh:
        process = forked.Running(command, cwd, environment(**env))
    else:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=cwd,
            env=environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        deadline = time.monotonic() + GRACE
        while (left := {*living_in(cwd)} - there) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    assert not left, f"{command} has left processes running: {left}"


def living_in(folder: Path) -> list[int]:
    """Return the pids of the processes whose folder is this one or below, less this process, its children, and SLURM's jobs."""
    result, own = [], os.getpid()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if (process / "cwd").readlink().is_relative_to(folder.resolve()) and own not in (int(process.name), parent):
                result += [] if b"SLURMD_NODENAME=" in (process / "environ").read_bytes() else [int(process.name)]
    return result


def train(*overrides: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python train.py OVERRIDES` on the CPU, from a folder of the test's own; `options` are those of `python`."""
    return python(ROOT / "train.py", "trainer.accelerator=cpu", *overrides, cwd=cwd, **options)


def begun(cwd: Path, run: Path, *arguments: str) -> forked.Running:
    """As `_train` of benchmarks/chaos.py, whose commands import everything anew, begins or continues a training."""
    run.mkdir(exist_ok=True)
    for path in run.glob("pid.*"):
        path.unlink()  # of an earlier life
    return forked.Running([str(ROOT / "train.py"), *arguments], cwd, environment(), run / "output.txt")


def runs(folder: Path) -> list[Path]:
    """The run directories below folder/logs, oldest first."""
    return sorted((path.parent for path in folder.glob("logs/*/*/status.json")), key=lambda path: path.stat().st_mtime)


def status(run: Path) -> dict[str, Any]:
    """Return what status.json says; nothing where there is none."""
    path = run / "status.json"
    return json.loads(path.read_text()) if path.exists() else {}


def record(run: Path) -> dict[str, Any]:
    """Return what metrics.json says of a run that has finished."""
    return json.loads((run / "metrics.json").read_text())


def refused(folder: Path, *overrides: str, **env: str) -> str:
    """The one line on standard error. A run's directory that it leaves has the reason in it."""
    before = sorted(folder.rglob("*"))
    done = train(*overrides, cwd=folder, **env, code=2)
    assert done.stderr.count("\n") == 1, done.stderr
    line = done.stderr.strip()
    for run in runs(folder):
        assert status(run)["reason"] in line
        shutil.rmtree(run)
    if not any(path.is_file() for path in (folder / "logs").rglob("*")):
        shutil.rmtree(folder / "logs", ignore_errors=True)
    assert sorted(folder.rglob("*")) == before
    return line


def checkout(folder: Path) -> Path:
    """The working tree as it is, committed, in a folder that is empty or not there yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *arguments], cwd=folder, check=True)
    return folder
