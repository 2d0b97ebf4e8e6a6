"""The other side of the parent: a rank whose life is tied to it, and who tells it what went wrong."""

import os
import threading
import time
from pathlib import Path
from signal import SIGKILL

from lockstep.atomic_files import write_json
from lockstep.launchers.environment import ERROR_DIR, PARENT_PIPE, SWEEP_PIPE, this_rank


def follow_parent() -> None:
    """Kills this process group when the one that started it is gone, kill -9 included: a rank follows its parent, a
    sweep's job the sweep. Does nothing in a process that a person has started."""
    descriptor = os.environ.get(PARENT_PIPE) or os.environ.pop(SWEEP_PIPE, None)  # what a job starts can't read it
    if descriptor is not None:
        threading.Thread(target=_die_with, args=(int(descriptor),), name="follow-parent", daemon=True).start()


def _die_with(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.killpg(os.getpgrp(), SIGKILL)


def tell_parent(code: int, reason: str, traceback: str | None = None, signal: int = 0, is_final: bool = False) -> bool:
    """Leaves the reason of this rank's end for the parent to show once. False where there is no parent."""
    rank = this_rank()
    if rank is None or rank.started_by != "parent":
        return False
    said = {"code": code, "reason": reason, "traceback": traceback, "signal": signal, "is_final": is_final}
    report = {"time": time.time(), "rank": rank.global_rank} | said
    write_json(Path(os.environ[ERROR_DIR]) / f"rank{rank.global_rank}.json", report)
    return True
