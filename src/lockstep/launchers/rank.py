"""The end of a rank: with the process that started it, or by itself."""

import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait
from typing import Any

from lockstep.launchers.environment import SWEEP_PIPE, launcher


def attach_to_parent() -> None:
    """Make this process end with the one that started it: torchrun, or the sweep of a job on another machine. Do nothing in a
    process that the user started."""
    if (pipe := os.environ.pop(SWEEP_PIPE, None)) is not None:  # not for the job's own processes
        end_with(int(pipe))
    elif launcher().is_followed and sys.platform == "linux":
        end_with(os.pidfd_open(os.getppid()))


def end_with(descriptor: int) -> None:
    """Kill this process group when a pipe from another process closes, which also happens after kill -9."""
    threading.Thread(target=_die_with, args=(descriptor,), name="follow-parent", daemon=True).start()


def _die_with(descriptor: int) -> None:
    wait([descriptor])  # nothing is ever written to it
    os.killpg(os.getpgrp(), signal.SIGKILL)


def process_group() -> Any:
    """Return torch.distributed if this process has a group, else None."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed is not None and distributed.is_available() and distributed.is_initialized() else None


def leave_process_group() -> None:
    """Destroy the process group; otherwise the process may end with `terminate called without an active exception`."""
    if (distributed := process_group()) is not None:
        distributed.barrier()
        distributed.destroy_process_group()


def end_workers() -> None:
    """Kill the data workers, because they ignore the SIGTERM by which Python would end them at exit."""
    workers = multiprocessing.active_children()
    if workers:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report a worker's end as an error
    for worker in workers:
        worker.kill()
