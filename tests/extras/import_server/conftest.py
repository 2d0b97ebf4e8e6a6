"""A folder in which servers are quick, and what starts processes there."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import environment
from forks import Start

from lockstep.extras.import_server import servers as client
from lockstep.extras.import_server.servers import ImportServers
from lockstep.launchers.environment import SWEEP_PIPE
from lockstep.launchers.processes import start_process


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, whose modules come first: here servers are quick, for there is no torch to import."""
    for name in ("torch", "lightning"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files, by a short path: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImportServers]:
    servers = ImportServers()
    monkeypatch.setattr(client, "SERVERS", servers)
    yield servers
    servers.end()


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts the script given as text; its output goes to the file `output`."""
    reader, writer = os.pipe()

    def start(text: str, *arguments: str, fresh: bool = False, **env: str) -> Any:
        (folder / "script.py").write_text(text)
        command = [sys.executable, "script.py", *arguments]
        with (folder / "output").open("wb") as file:
            return start_process(command, environment(**env), (SWEEP_PIPE, reader), file, file, fresh=fresh, starts_ranks=True)

    yield start
    for descriptor in (reader, writer):
        os.close(descriptor)
