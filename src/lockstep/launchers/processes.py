"""Starting a process of this program: by whom conf/launchers.yaml names, or as a fresh interpreter."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from hydra.utils import get_object

from lockstep.config.plan import cores
from lockstep.launchers.settings import read_settings


class Process(Protocol):
    """Of subprocess.Popen what is needed here."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...
    def send_signal(self, number: int, /) -> None: ...


@dataclass(frozen=True)
class Request:
    """A process to start: what it runs, where, and the variable that names the descriptor whose end it ends with."""

    arguments: list[str]  # from the script on
    cwd: str
    environment: dict[str, str]
    lifeline: str
    cores: list[int]


class Starter(Protocol):
    """Who starts processes in another way than as fresh interpreters."""

    def start(self, request: Request, descriptors: list[int]) -> Process | None:
        """Returns the process, with these descriptors as its output, its errors and its lifeline; None where it can't be started
        in this way."""


def starter() -> Starter | None:
    name = read_settings().get("starter")
    return None if name is None else get_object(name)


def start_process(
    command: Sequence[str],
    environment: dict[str, str],
    lifeline: tuple[str, int],
    output: IO[bytes] | None = None,
    errors: IO[bytes] | None = None,
    cores_kept: Sequence[int] | None = None,
    fresh: bool = False,
) -> Process:
    """Starts a process in a session of its own, so that Ctrl-C reaches us alone, and it and its data workers end as a group.

    `lifeline` is a variable and the descriptor that it names; `output` and `errors` are this process's if none are given.
    """
    kept = sorted(cores()) if cores_kept is None else [*cores_kept]
    is_script = command[0] == sys.executable and not command[1].startswith("-")
    if is_script and not fresh and (other := starter()) is not None:
        request = Request([*command[1:]], str(Path.cwd()), environment, lifeline[0], kept)
        descriptors = [output.fileno() if output else 1, errors.fileno() if errors else 2, lifeline[1]]
        if (process := other.start(request, descriptors)) is not None:
            return process
    process = subprocess.Popen(
        command,
        env=environment | {lifeline[0]: str(lifeline[1])},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        pass_fds=(lifeline[1],),
        start_new_session=True,
    )
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, kept)
    return process
