"""Starting a process of this program: by whom conf/launchers.yaml names, or as a fresh interpreter."""

import contextlib
import os
import subprocess
from collections.abc import Sequence
from typing import IO, Protocol

from hydra.utils import get_object

from lockstep.config.plan import cores
from lockstep.places import read_settings


class Process(Protocol):
    """Has what is needed here of subprocess.Popen."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...
    def send_signal(self, number: int, /) -> None: ...


def start_process(
    command: Sequence[str],
    environment: dict[str, str],
    lifeline: tuple[str, int],
    output: IO[bytes] | None = None,
    errors: IO[bytes] | None = None,
    cores_kept: Sequence[int] | None = None,
    fresh: bool = False,
    starts_ranks: bool = False,
) -> Process:
    """Starts a process in a session of its own, so that Ctrl-C reaches us alone, and it and its data workers end as a group.

    `lifeline` is a variable and the descriptor that it names, with whose end the process ends; `output` and `errors` are this
    process's if none are given. Unless it is `fresh`, the starter of conf/launchers.yaml starts it, and its ranks if it
    `starts_ranks`, where it can.
    """
    kept = sorted(cores()) if cores_kept is None else [*cores_kept]
    if not fresh and (name := read_settings().get("starter")) is not None:
        other: Process | None = get_object(name).start(command, environment, lifeline, (output, errors), kept, starts_ranks)
        if other is not None:
            return other
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
