"""A user's folder with a runtime directory, in which servers are quick, for there is no torch to import."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import environment
from waiting import wait_for

LEAVE = "import sys; from lockstep.extras.warm.events import leave_server; leave_server(float(sys.argv[1]))"


class Home:
    """Commands are scripts of this folder, as a person would call them there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runtime = folder, folder / "run"
        self.runtime.mkdir(mode=0o700)
        (folder / "lightning.py").write_text("raise ImportError")
        (folder / "torch").mkdir()
        (folder / "torch" / "__init__.py").touch()
        (folder / "torch" / "_dynamo.py").touch()
        given = environment(XDG_RUNTIME_DIR=str(self.runtime))
        self.environment = given | {"PYTHONPATH": f"{folder}{os.pathsep}{given['PYTHONPATH']}"}

    def use_torch(self) -> None:
        for path in (self.folder / "torch" / "__init__.py", self.folder / "torch" / "_dynamo.py", self.folder / "lightning.py"):
            path.unlink()
        (self.folder / "torch").rmdir()

    def leave_server(self, minutes: float = 5.0) -> None:
        """Returns when it listens."""
        subprocess.run([sys.executable, "-c", LEAVE, str(minutes)], env=self.environment, check=True, timeout=60)
        wait_for(lambda: self.sockets, seconds=60)

    @property
    def sockets(self) -> list[Path]:
        return [*self.runtime.glob("lockstep/*.socket")]

    @property
    def server(self) -> int:
        (pid,) = self.processes("lockstep warm server")
        return pid

    def processes(self, title: str) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_ours = f"XDG_RUNTIME_DIR={self.runtime}".encode() in (folder / "environ").read_bytes()
                if is_ours and (folder / "cmdline").read_text().startswith(title):
                    found.append(int(folder.name))
        return found

    @contextlib.contextmanager
    def start(self, text: str, *arguments: str, prefix: tuple[str, ...] = (), **more: Any) -> Iterator[subprocess.Popen[str]]:
        """A script that begins as those of a person's do, killed when it is left."""
        (self.folder / "script.py").write_text(f"import lockstep.launchers.begin\n{text}")
        command = [*prefix, sys.executable, "script.py", *arguments]
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **streams | more) as process:
            try:
                yield process
            finally:
                process.kill()

    def call(self, text: str, *arguments: str, given: str = "", **more: Any) -> tuple[int, str, str]:
        """To its end: the exit code, and what it has said."""
        with self.start(text, *arguments, **more) as process:
            output, errors = process.communicate(given, timeout=60)
        return process.returncode, output, errors

    def script(self, name: str, *arguments: str) -> str:
        command = [sys.executable, str(Path(__file__).parents[3] / "scripts" / name), *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout


@pytest.fixture(scope="module")
def make_home() -> Iterator[Callable[[], Home]]:
    """By a short path: a socket's has at most 107 bytes. What is left running in one is ended."""
    homes: list[Home] = []

    def make() -> Home:
        homes.append(Home(Path(tempfile.mkdtemp(dir="/tmp"))))
        return homes[-1]

    yield make
    for home in homes:
        for pid in home.processes(""):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["rm", "-r", str(home.folder)], check=True)


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Home]) -> Home:
    """With a server, for all tests that leave it."""
    one = make_home()
    one.leave_server()
    return one
