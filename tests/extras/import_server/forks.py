"""What tests of servers ask of them and of their forks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.extras.import_server.servers import ImportServers

Start = Callable[..., Any]


def wait_for_end(process: Any) -> tuple[int, str]:
    """Its exit code, and what it has said."""
    code = process.wait()
    assert process.poll() == process.returncode == code
    return code, Path("output").read_text()


def pids(servers: ImportServers) -> list[int]:
    return [server._process.pid for server in servers._servers]
