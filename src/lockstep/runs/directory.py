"""Lock a run's or a sweep's directory before anything is written into it, and find the directories of runs."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep.atomic_files import read_json, replacing
from lockstep.errors import ConfigError, config_error
from lockstep.runs.locks import Lock, is_held
from lockstep.runs.record import write_status
from lockstep.runs.saved import FILE, NEXT

_RUN_FILES = (FILE, "status.json", "metrics.json", "checkpoints")  # any of them marks the directory of a run
SWEEP_FILE = "multirun.yaml"  # marks the directory of a sweep
COULD_NOT_START = "could_not_start"  # in status.json: no step was made, so another run may use the directory


class OwnDirectory:
    """The directory of a run or a sweep. It is created if missing, and locked until `leave` or until the process ends."""

    def __init__(self, directory: Path, key: str) -> None:
        """Raise ConfigError, naming `key`, if another process holds the lock."""
        self.path, self._key, self._pid = directory, key, os.getpid()
        self._take()

    def _take(self) -> None:
        self._is_new, self._holds_run = not self.path.exists(), has_run(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.path, self._key)
        self._status = [path.read_bytes() for path in self.path.glob("status.json")]

    def set_aside(self) -> None:
        """Rename the directory of an earlier run, then create and lock a new one."""
        self.leave()
        self.path.rename(self.path.with_name(f"{self.path.name}.before-{time.strftime('%Y-%m-%d_%H-%M-%S')}"))
        self._take()

    def leave(self) -> None:
        """Release the lock."""
        self._lock.close()

    def end_unstarted(self, reason: str) -> None:
        """Record why the run could not start, and release the directory. An earlier run's status is restored."""
        if self._holds_run:
            shutil.rmtree(self.path / NEXT, ignore_errors=True)
            for content in self._status:
                with replacing(self.path / "status.json", "wb") as file:
                    file.write(content)
        else:
            write_status(self.path, "failed", reason, **{COULD_NOT_START: True})
        self.leave()

    def remove_without_jobs(self) -> None:
        """Remove the directory if it was created for a sweep that has no jobs, and release it."""
        if os.getpid() != self._pid:
            return
        if self._is_new and not any(self.path.glob("[!.]*/status.json")):
            shutil.rmtree(self.path, ignore_errors=True)
        self.leave()


def take_new(directory: Path, overwrite: bool) -> OwnDirectory:
    """Create and lock the directory of a new run. Raise ConfigError, with nothing changed, if it belongs to a sweep, or to
    another run and `overwrite` is false."""
    if not is_held(directory):
        _check_new(directory, overwrite)
    own = OwnDirectory(directory, "hydra.run.dir")
    try:
        _check_new(directory, overwrite)  # another process may have taken it meanwhile
    except ConfigError:
        own.leave()
        raise
    if has_run(directory):
        own.set_aside()
    return own


def _check_new(directory: Path, overwrite: bool) -> None:
    if (directory / SWEEP_FILE).exists():
        raise config_error("hydra.run.dir", directory, "belongs to a sweep; name another directory")
    if has_run(directory) and not overwrite:
        words = f"belongs to an earlier run; name another directory, resume={directory} to go on with that run, or "
        raise config_error("hydra.run.dir", directory, f"{words}overwrite=true to set it aside and start over")


def take_sweep_directory(directory: Path) -> OwnDirectory:
    """Create and lock the directory of a sweep. Raise ConfigError if it belongs to a run."""
    if any((directory / name).exists() for name in _RUN_FILES) and not (directory / SWEEP_FILE).exists():
        raise config_error("hydra.sweep.dir", directory, "belongs to a run; name another directory")
    return OwnDirectory(directory, "hydra.sweep.dir")


def has_run(directory: Path) -> bool:
    """Return whether the directory belongs to an earlier run."""
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
