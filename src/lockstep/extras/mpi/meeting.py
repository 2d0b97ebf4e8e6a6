"""How ranks that know nothing of each other but their numbers learn where rank zero is: by files in the run's directory.

What an earlier start has left there names nobody: rank zero removes it, each rank writes its own token until it finds that
repeated, and an address counts for those alone whose tokens stand beside it.
"""

import contextlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from lockstep.atomic_files import read_json, replace_text, write_json
from lockstep.errors import ConfigError
from lockstep.launchers.supervisor import reserved_port

FOLDER = ".mpi"
WITHIN = 600.0  # seconds between the first rank and the last: programs may be read from slow storage
_PAUSE = 0.05
_ports = contextlib.ExitStack()  # that are kept for torch


def meet(directory: Path, rank: int, world_size: int, host: str, port: int = 0) -> tuple[str, int]:
    """Returns the address of rank zero: its own `host`, and `port`, or a free one for 0. Called in every rank. Raises ConfigError
    where the others do not come to the directory."""
    folder, deadline = directory / FOLDER, time.monotonic() + WITHIN
    answer = (lambda: _invite(folder, world_size, host, port)) if rank == 0 else _asker(folder, rank)
    if rank == 0:
        folder.mkdir(exist_ok=True)
        for file in folder.iterdir():
            file.unlink(missing_ok=True)
    while (found := answer()) is None:
        if time.monotonic() > deadline:
            who = "rank zero has not" if rank else f"of {world_size} ranks not all have"
            words = f"{who} come to it within {WITHIN:g} s; accepted is a directory on storage that all hosts share"
            raise ConfigError(f"hydra.run.dir={directory}: {words}")
        time.sleep(_PAUSE)
    return found


def _invite(folder: Path, world_size: int, host: str, port: int) -> tuple[str, int] | None:
    """Returns and writes the address when all others are there."""
    try:
        tokens = {str(rank): (folder / str(rank)).read_text() for rank in range(1, world_size)}
    except FileNotFoundError:
        return None
    port = port or _ports.enter_context(reserved_port(""))
    write_json(folder / "address.json", {"host": host, "port": port, "tokens": tokens})
    return host, port


def _asker(folder: Path, rank: int) -> Callable[[], tuple[str, int] | None]:
    token, own = secrets.token_hex(8), folder / str(rank)

    def ask() -> tuple[str, int] | None:
        with contextlib.suppress(FileNotFoundError):  # rank zero is not there yet, or removes what there was
            if not own.exists():
                replace_text(own, token)
            address = read_json(folder / "address.json") or {}
            if address.get("tokens", {}).get(str(rank)) == token:
                return address["host"], address["port"]
        return None

    return ask
