"""Where torch keeps what it has compiled: a run, a restart and a sweep's later jobs take it from there."""

import os
import time
from contextlib import suppress
from pathlib import Path

import torch

_IN_USE = 3600.0  # seconds: what is younger may be of a run that begins


def use_cache(folder: Path, gib: float) -> None:
    """Has torch keep its graphs and kernels in a folder of this torch's version, for this process and those that it starts. What
    is over `gib` there, of any version, is removed, the oldest first."""
    own = folder.expanduser().absolute() / f"torch-{torch.__version__}"
    own.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own)  # torch reads it whenever it writes there
    shrink(own.parent, gib * 2**30)


def shrink(folder: Path, size: float) -> None:
    """Removes the oldest files in a folder that has more than `size` bytes until it has no more, but none of the last hour's:
    torch makes again what is not there."""
    files: list[tuple[float, int, Path]] = []
    for path in folder.rglob("*"):
        with suppress(OSError):  # another run has removed it
            stat = path.lstat()
            files += [] if path.is_dir() else [(stat.st_mtime, stat.st_size, path)]
    excess = sum(length for _, length, _ in files) - size
    for changed, length, path in sorted(files):
        if excess <= 0 or changed > time.time() - _IN_USE:
            return
        with suppress(OSError):
            path.unlink()
        excess -= length
