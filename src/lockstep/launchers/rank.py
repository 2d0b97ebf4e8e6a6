"""What a rank does about its parent: it ends with it, and reports to it why it ends itself."""

import contextlib
import dataclasses
import multiprocessing
import os
import select
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

from lockstep.atomic_files import write_json
from lockstep.errors import ConfigError
from lockstep.launchers.environment import ERROR_DIR, PARENT_PIPE, SWEEP_PIPE, launcher, this_rank
from lockstep.launchers.outcome import Outcome


def attach_to_parent() -> bool:
    """Kills this process group when the one that started it is gone, kill -9 included: a rank follows its parent or who else has
    started it, a sweep's job the sweep. Does nothing in a process that a person has started.

    Returns whether a parent or a sweep of this program has started it.
    """
    own, swept = (_lifeline(name) for name in (PARENT_PIPE, SWEEP_PIPE))
    os.environ.pop(SWEEP_PIPE, None)  # what a job starts can't read it
    pipe = swept if own is None else own
    descriptor = launcher().attach() if pipe is None else pipe
    if descriptor is not None:
        threading.Thread(target=_die_with, args=(descriptor,), name="follow-parent", daemon=True).start()
    return pipe is not None


def _lifeline(name: str) -> int | None:
    """Returns the pipe that a variable names. Raises ConfigError if there is none: the variable is left over then."""
    given = os.environ.get(name)
    if given is None:
        return None
    with contextlib.suppress(ValueError, OverflowError, OSError):
        if stat.S_ISFIFO(os.fstat(int(given)).st_mode):
            return int(given)
    raise ConfigError(f"{name}={given}: is left over from a run that has ended; accepted is an environment without it")


def _die_with(descriptor: int) -> None:
    select.select([descriptor], [], [])  # nothing is ever written to a pipe from the parent
    os.killpg(os.getpgrp(), signal.SIGKILL)


def report_to_parent(outcome: Outcome) -> bool:
    """Leaves the reason of this rank's end for the parent to show once. False where there is no parent."""
    rank = this_rank()
    if rank is None or rank.started_by != "parent":
        return False
    report = dataclasses.asdict(outcome) | {"rank": rank.global_rank, "time": time.time()}
    write_json(Path(os.environ[ERROR_DIR]) / f"rank{rank.global_rank}.json", report)
    return True


def process_group() -> Any:
    """Returns torch.distributed where this process has a group, else None."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed is not None and distributed.is_available() and distributed.is_initialized() else None


def leave_process_group() -> None:
    """Destroys it: else a process may end with `terminate called without an active exception` although all went well."""
    if (distributed := process_group()) is not None:
        distributed.barrier()
        distributed.destroy_process_group()


def end_workers() -> None:
    """Kills the data workers: Python would end them by SIGTERM when it exits, which they ignore."""
    workers = multiprocessing.active_children()
    if workers:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler takes the end of a worker for an accident
    for worker in workers:
        worker.kill()
