"""Directories of runs and sweeps: locked before anything is written into them, and found below a folder."""

import atexit
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep.atomic_files import read_json
from lockstep.errors import config_error
from lockstep.runs.locks import Lock, is_held
from lockstep.runs.record import COULD_NOT_START
from lockstep.runs.saved import FILE

SWEEP_FILE = "multirun.yaml"  # marks the directory of a sweep
_RUN_FILES = (FILE, "status.json", "metrics.json", "checkpoints")  # any of them marks the directory of a run


def lock_new_run(directory: Path, overwrite: bool) -> Lock:
    """Create and lock the directory of a new run; rename that of an earlier run if `overwrite` is true. Raise ConfigError, with
    nothing changed, if the directory belongs to a sweep, or to an earlier run and `overwrite` is false."""
    if not is_held(directory):
        _check_new(directory, overwrite)
    lock = Lock(directory, "hydra.run.dir")
    _check_new(directory, overwrite)  # another process may have used the directory meanwhile
    if has_run(directory):
        lock.close()
        directory.rename(directory.with_name(f"{directory.name}.before-{time.strftime('%Y-%m-%d_%H-%M-%S')}"))
        lock = Lock(directory, "hydra.run.dir")
    return lock


def _check_new(directory: Path, overwrite: bool) -> None:
    if (directory / SWEEP_FILE).exists():
        raise config_error("hydra.run.dir", directory, "belongs to a sweep; name another directory")
    if has_run(directory) and not overwrite:
        words = f"belongs to an earlier run; name another directory, resume={directory} to go on with that run, or "
        raise config_error("hydra.run.dir", directory, f"{words}overwrite=true to set it aside and start over")


def lock_sweep(directory: Path) -> None:
    """Create and lock the directory of a sweep until this process ends; a new one is then removed if it has no jobs. Raise
    ConfigError if the directory belongs to a run."""
    if has_run(directory) and not (directory / SWEEP_FILE).exists():
        raise config_error("hydra.sweep.dir", directory, "belongs to a run; name another directory")
    is_new = not directory.exists()
    Lock(directory, "hydra.sweep.dir")
    if is_new:
        atexit.register(_remove_without_jobs, directory)


def _remove_without_jobs(directory: Path) -> None:
    if Lock.is_here(directory) and not any(directory.glob("[!.]*/status.json")):
        shutil.rmtree(directory, ignore_errors=True)


def has_run(directory: Path) -> bool:
    """Return whether the directory belongs to an earlier run, which was able to start."""
    could_not_start = (read_json(directory / "status.json") or {}).get(COULD_NOT_START)
    return not could_not_start and any((directory / name).exists() for name in _RUN_FILES)


def run_directories(folder: Path, depth: int = sys.maxsize) -> Iterator[Path]:
    """Yield the directories of runs and sweep jobs at most `depth` levels below a folder. Follow links to folders, because logs/
    may be a link to a larger disk, but not links to runs."""
    for name, folders, _ in os.walk(folder, followlinks=True):
        path = Path(name)
        is_run = (path / FILE).is_file()
        if is_run and not path.is_symlink():
            yield path
        if is_run or len(path.relative_to(folder).parts) == depth:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def absolute(path: str | Path) -> Path:
    """Return the absolute path as Hydra writes it: `..` is resolved, links are not."""
    return Path(os.path.abspath(path))  # noqa: PTH100
