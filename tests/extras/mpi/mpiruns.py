"""Real mpiruns: Debian has them as openmpi-bin and mpich, beside each other."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import ROOT, environment

NAMES = ("openmpi", "mpich")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
TIMEOUT = 220  # seconds: each rank is an interpreter of its own
TRAIN = (str(ROOT / "train.py"), "trainer=cpu", "trainer.devices=2")


def program(name: str) -> str:
    """Skips the test where this mpirun is not installed."""
    found = shutil.which(f"mpirun.{name}")
    if found is None:
        pytest.skip(f"no mpirun.{name} (Debian has it as {'openmpi-bin' if name == 'openmpi' else name})")
    return found


@contextmanager
def mpirun(name: str, *arguments: str, cwd: Path, wrapped: bool = False) -> "Iterator[subprocess.Popen[str]]":
    """`mpirun -n 2 python ARGUMENTS`, in a session of its own; `wrapped` in a script between mpirun and Python."""
    script = ("sh", "-c", '"$@"; exit $?', "sh") if wrapped else ()
    command = [program(name), "-n", "2", *script, sys.executable, *arguments]
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=cwd, env=environment(**AS_ROOT), start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def run(name: str, *arguments: str, cwd: Path) -> tuple[int, str]:
    """The exit code and all that was printed."""
    with mpirun(name, *arguments, cwd=cwd) as process:
        output, _ = process.communicate(timeout=TIMEOUT)
        return process.returncode, output
