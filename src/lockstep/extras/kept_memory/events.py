"""Has a process that trains on CPUs keep the memory that it frees.

By glibc's defaults (mallopt(3)) what a step frees at the top of the heap goes back to the system, and its pages are zeroed and
mapped anew in the next step, which takes a fifth of a small convolutional net's.
"""

import ctypes
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lockstep.config.targets import buildable
from lockstep.errors import config_error
from lockstep.runs.events import RunEvents

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST = 32 * 2**20  # bytes, the most that mallopt takes for the second: what is larger has a mapping of its own
_MOST = 2**31 - 1  # bytes: it takes an int


@buildable
class KeptMemory(RunEvents):
    """Keeps up to `mib` MiB of freed memory in each process that trains on CPUs; `events.kept_memory=null` is without it."""

    def __init__(self, mib: int) -> None:
        if type(mib) is not int or not 0 <= mib * 2**20 <= _MOST:
            raise config_error("events.kept_memory.mib", mib, "accepted is a whole number from 0 to 2047")
        self.mib = mib

    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        if trainer.strategy.root_device.type == "cpu":
            keep_freed_memory(self.mib)


def keep_freed_memory(mib: int) -> bool:
    """Returns whether malloc does so from now on, in this process: glibc's does."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, mib * 2**20))
