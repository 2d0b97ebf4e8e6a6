"""Lock a run's or a sweep's directory before anything is written into it."""

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lockstep.atomic_files import read_json, replacing
from lockstep.errors import config_error
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs.locks import Lock, check_free
from lockstep.runs.record import write_status
from lockstep.runs.saved import FILE, NEXT

_RUN_FILES = (FILE, "status.json", "metrics.json", "checkpoints")  # any of them shows that a directory is a run's
SWEEP_FILE = "multirun.yaml"  # the same for a sweep
_SWEEP = "hydra.sweep.dir"
COULD_NOT_START = "could_not_start"  # in status.json: no step was taken, so that another run may take the directory


class OwnDirectory:
    """The directory of a run or a sweep: made where there is none, and locked until `leave`, or until the process ends."""

    def __init__(self, directory: Path, key: str) -> None:
        """Raise ConfigError, naming `key`, where the directory can't be made or another process has it."""
        self.path, self._key, self._pid = directory, key, os.getpid()
        self._take()

    def _take(self) -> None:
        with STOP_SIGNALS.deferring(), _writing(self.path, self._key):
            self._is_new, self._holds_run = not self.path.exists(), has_run(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.path, self._key)
            self._status = [path.read_bytes() for path in self.path.glob("status.json")]

    def set_aside(self) -> None:
        """Move the whole directory of an earlier run, and take it anew."""
        with STOP_SIGNALS.deferring():
            self.leave()
            with _writing(self.path, "overwrite"):
                self.path.rename(aside(self.path))
            self._take()

    def leave(self) -> None:
        """Let other processes take it, as it is now."""
        self._lock.close()

    def end_unstarted(self, reason: str) -> None:
        """Note why the run could not start, and leave the directory. One that holds a run has its status as before."""
        with contextlib.suppress(OSError):  # the disk is full
            if self._holds_run:
                shutil.rmtree(self.path / NEXT, ignore_errors=True)
                for content in self._status:
                    with replacing(self.path / "status.json", "wb") as file:
                        file.write(content)
            else:
                write_status(self.path, "failed", reason, **{COULD_NOT_START: True})
        self.leave()

    def remove_without_jobs(self) -> None:
        """Remove the directory if it was made for a sweep that has no jobs, and leave it."""
        if os.getpid() != self._pid:
            return
        if self._is_new and not any(self.path.glob("[!.]*/status.json")):
            shutil.rmtree(self.path, ignore_errors=True)
        self.leave()


def aside(directory: Path) -> Path:
    """The next free name for what was in a directory."""
    names = (directory.with_name(f"{directory.name}.before-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


@contextlib.contextmanager
def _writing(directory: Path, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise config_error(
            key, directory, f"can't be made or written to ({error.strerror or error}); name another folder"
        ) from error


def take_new(directory: Path, overwrite: bool) -> OwnDirectory:
    """Take the directory of a new run. Raise ConfigError, with nothing changed, where another run or a sweep has it, unless that
    run is to be set aside."""
    with _writing(directory, "hydra.run.dir"):
        is_sweep_s, is_run_s = (directory / SWEEP_FILE).exists(), has_run(directory)
    if is_sweep_s:
        raise config_error("hydra.run.dir", directory, "belongs to a sweep; name another directory")
    if is_run_s:
        check_free(directory, "hydra.run.dir")
        if not overwrite:
            words = f"belongs to an earlier run; name another directory, resume={directory} to go on with that run, or "
            raise config_error("hydra.run.dir", directory, f"{words}overwrite=true to set it aside and start over")
    own = OwnDirectory(directory, "hydra.run.dir")
    if has_run(directory):
        own.set_aside()
    return own


def take_sweep_directory(directory: Path) -> OwnDirectory:
    """Take the directory of a sweep. Raise ConfigError for a run's."""
    with _writing(directory, _SWEEP):
        is_run_s = any((directory / name).exists() for name in _RUN_FILES) and not (directory / SWEEP_FILE).exists()
    if is_run_s:
        raise config_error(_SWEEP, directory, "belongs to a run; name another directory")
    return OwnDirectory(directory, _SWEEP)


def has_run(directory: Path) -> bool:
    """Return whether an earlier run has the directory."""
    is_unstarted = (read_json(directory / "status.json") or {}).get(COULD_NOT_START)
    return any((directory / name).exists() for name in _RUN_FILES) and not is_unstarted


def absolute(path: str | Path) -> Path:
    """Return the path as Hydra spells it: links are kept, `..` is not."""
    return Path(os.path.abspath(path))  # noqa: PTH100
