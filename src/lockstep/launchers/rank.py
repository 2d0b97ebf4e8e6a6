"""The end of a rank: with the process that started it, or by itself."""

import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait
from typing import Any, NoReturn

from lockstep.launchers.environment import SWEEP_PIPE, this_rank


def attach_to_parent() -> None:
    """Make this process end with the one that started it as a rank, or with the sweep of a job on another machine. Do nothing in
    a process that the user started."""
    if (pipe := os.environ.pop(SWEEP_PIPE, None)) is not None:  # not for the job's own processes
        end_with(int(pipe))
    elif this_rank() is not None and sys.platform == "linux":
        end_with(os.pidfd_open(os.getppid()))


def end_with(descriptor: int) -> None:
    """Kill this process group when a pipe from another process closes, which also happens after kill -9."""
    threading.Thread(target=_die_with, args=(descriptor,), name="follow-parent", daemon=True).start()


def _die_with(descriptor: int) -> None:
    wait([descriptor])  # nothing is ever written to it
    os.killpg(os.getpgrp(), signal.SIGKILL)


def end_workers() -> None:
    """Kill the data workers, because they ignore the SIGTERM by which Python would end them at exit."""
    workers = multiprocessing.active_children()
    if workers:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report a worker's end as an error
    for worker in workers:
        worker.kill()


def leave_process_group() -> None:
    """Destroy the process group; otherwise the process may end with `terminate called without an active exception`."""
    if (distributed := _process_group()) is not None:
        distributed.barrier()
        distributed.destroy_process_group()


def leave(code: Any) -> NoReturn:
    """Exit with a code; immediately if this process has a process group, because Python would wait for collectives that other
    ranks may never join."""
    if isinstance(code, int) and _process_group() is not None:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _process_group() -> Any:
    """Return torch.distributed if this process has a group, else None."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed is not None and distributed.is_available() and distributed.is_initialized() else None
