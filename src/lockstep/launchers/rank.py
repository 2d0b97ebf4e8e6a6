"""The other side of the parent: a rank whose life is tied to it, and who tells it what went wrong."""

import dataclasses
import os
import select
import threading
import time
from pathlib import Path
from signal import SIGKILL

from lockstep.atomic_files import write_json
from lockstep.launchers.environment import ERROR_DIR, PARENT_PIPE, SWEEP_PIPE, this_rank


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the ranks ended: an exit code (0, 1, 2 or 75), and of the rank that failed first, what it said; after being
    preempted the signal's number, and why nothing was saved anew, if so."""

    code: int
    reason: str | None = None
    rank: int | None = None
    traceback: str | None = None
    signal: int = 0
    unsaved: str | None = None
    is_final: bool = dataclasses.field(default=False, compare=False)  # it would fail again in the same way
    is_silent: bool = dataclasses.field(default=False, compare=False)  # the rank has not said why


def follow_parent() -> None:
    """Kills this process group when the one that started it is gone, kill -9 included: a rank follows its parent or
    torchrun, a sweep's job the sweep. Does nothing in a process that a person has started."""
    given = os.environ.get(PARENT_PIPE) or os.environ.pop(SWEEP_PIPE, None)  # what a job starts can't read it
    descriptor = _torchrun() if given is None else int(given)
    if descriptor is not None:
        threading.Thread(target=_die_with, args=(descriptor,), name="follow-parent", daemon=True).start()


def _torchrun() -> int | None:
    """A descriptor that can be read when torchrun has ended. A rank that comes to this too late finds its store gone."""
    if not {"TORCHELASTIC_RUN_ID", "LOCAL_RANK"} <= os.environ.keys() or not hasattr(os, "pidfd_open"):
        return None
    return os.pidfd_open(os.getppid())


def _die_with(descriptor: int) -> None:
    select.select([descriptor], [], [])  # nothing is ever written to a pipe from the parent
    os.killpg(os.getpgrp(), SIGKILL)


def tell_parent(outcome: Outcome) -> bool:
    """Leaves the reason of this rank's end for the parent to show once. False where there is no parent."""
    rank = this_rank()
    if rank is None or rank.started_by != "parent":
        return False
    report = dataclasses.asdict(outcome) | {"rank": rank.global_rank, "time": time.time()}
    write_json(Path(os.environ[ERROR_DIR]) / f"rank{rank.global_rank}.json", report)
    return True
