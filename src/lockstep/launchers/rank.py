"""A rank's end: with the program that has started it, or by itself."""

import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait
from typing import Any

from lockstep.launchers.environment import SWEEP_PIPE, launcher


def attach_to_parent() -> None:
    """End with the process that started this one: torchrun, or the sweep of a job on another machine. Do nothing in a process
    that a person has started."""
    if (pipe := os.environ.pop(SWEEP_PIPE, None)) is not None:  # the job's own processes can't read it
        end_with(int(pipe))
    elif launcher().is_followed and sys.platform == "linux":
        end_with(os.pidfd_open(os.getppid()))


def end_with(descriptor: int) -> None:
    """Kill this process group when a pipe from another process closes, which it does after kill -9, too."""
    threading.Thread(target=_die_with, args=(descriptor,), name="follow-parent", daemon=True).start()


def _die_with(descriptor: int) -> None:
    wait([descriptor])  # nothing is ever written to it
    os.killpg(os.getpgrp(), signal.SIGKILL)


def process_group() -> Any:
    """Return torch.distributed if this process has a group, else None."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed is not None and distributed.is_available() and distributed.is_initialized() else None


def leave_process_group() -> None:
    """Destroy the process group, without which a process may end with `terminate called without an active exception`."""
    if (distributed := process_group()) is not None:
        distributed.barrier()
        distributed.destroy_process_group()


def end_workers() -> None:
    """Kill the data workers: Python would end them by SIGTERM when it exits, which they ignore."""
    workers = multiprocessing.active_children()
    if workers:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler takes the end of a worker for an accident
    for worker in workers:
        worker.kill()
