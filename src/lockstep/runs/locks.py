"""Which process has a directory: a run its run directory, a sweep its sweep directory."""

import fcntl
import logging
import os
import platform
import time
from pathlib import Path
from typing import TextIO

from lockstep.errors import ConfigError

log = logging.getLogger(__name__)
_TRIES, _PAUSE = 4, 0.05  # seconds; somebody who only asks holds a lock for a moment
_held: dict[str, TextIO] = {}  # by the real path: closing another handle of the same file would give up the lock


def hold(directory: Path, key: str) -> None:
    """Holds `directory` until `release`, or until this process ends, however it ends.

    A POSIX record lock (fcntl(2)): unlike flock's it is not inherited by data workers, which may outlive a killed run.
    Raises ConfigError naming the config key and the holder, OSError where no lock file can be made.
    """
    if is_held_here(directory):
        return
    file = (directory / "lock").open("a+")
    try:
        _lock(file, directory, key)
    except ConfigError:
        file.close()
        raise
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}\n")
    file.flush()
    _held[os.path.realpath(directory)] = file


def release(directory: Path) -> None:
    if (file := _held.pop(os.path.realpath(directory), None)) is not None:
        file.close()


def is_held_here(directory: Path) -> bool:
    return os.path.realpath(directory) in _held


def check_free(directory: Path, key: str) -> None:
    """Raises ConfigError if another process holds `directory`. Changes nothing, and needs no right to."""
    path = directory / "lock"
    if is_held_here(directory) or not path.is_file():
        return
    with path.open() as file:
        _lock(file, directory, key, fcntl.LOCK_SH)


def is_held(directory: Path) -> bool:
    """Does a process hold it, this one or another."""
    try:
        check_free(directory, "")
    except (ConfigError, OSError):
        return True
    return is_held_here(directory)


def _lock(file: TextIO, directory: Path, key: str, kind: int = fcntl.LOCK_EX) -> None:
    for attempt in range(_TRIES):
        try:
            fcntl.lockf(file, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, by fcntl(2)
            time.sleep(_PAUSE if attempt < _TRIES - 1 else 0.0)
        except OSError as error:
            log.warning(f"{directory}: this file system has no locks ({error}); see to it that only one process uses it")
            return
        else:
            return
    file.seek(0)
    holder = file.read().strip() or "another process"
    raise ConfigError(f"{key}={directory}: is being run by {holder}; wait for it or end it")
