"""Where torch keeps what it has compiled: a run, a restart and a sweep's later jobs take it from there."""

import logging
import os
import time
from contextlib import suppress
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from lockstep.config.targets import ALLOW

log = logging.getLogger(__name__)
KEY, DEFAULT = "events.compiled_step.cache", "~/.cache/lockstep/compiled"
_OWN = "compiled-torch-"  # nothing else is removed from a folder
_IN_USE = 3600.0  # seconds: what is younger may be of a run that begins


def trusted(cfg: DictConfig, folder: str) -> str:
    """Returns the folder, or the default one where it was read from the directory of a run or a sweep and is not allowed: what
    lies there is run."""
    allowed = OmegaConf.select(cfg, ALLOW)
    if allowed is None or KEY in allowed or folder == DEFAULT:
        return folder
    log.info(f"{KEY}={folder}: a directory says so, and what lies there is run; {DEFAULT} is used, unless {ALLOW}=[{KEY}]")
    return DEFAULT


def use_cache(folder: Path, gib: float) -> None:
    """Has torch keep its graphs and kernels in a folder of this torch's version, for this process and those that it starts. What
    is over `gib` there, of any version, is removed, the oldest first. Where there can be no such folder, torch keeps them where
    it does by itself."""
    try:
        own = folder.expanduser().absolute() / f"{_OWN}{torch.__version__}"
        own.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # a user without a home, or with one that can't be written to, in a container say
        log.warning(f"{KEY}={folder}: {error}; what is compiled is kept in the folder for temporary files")
        return
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own)  # torch reads it whenever it writes there
    shrink(own.parent, gib * 2**30)


def shrink(folder: Path, size: float) -> None:
    """Removes the oldest files of what is kept in a folder, if that has more than `size` bytes, until it has no more; but none of
    the last hour's. Torch makes again what is not there."""
    files: list[tuple[float, int, Path]] = []
    for path in folder.glob(f"{_OWN}*/**/*"):
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
