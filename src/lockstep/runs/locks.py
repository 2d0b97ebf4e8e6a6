"""Which process has a directory: a run its run directory, a sweep its sweep directory."""

import fcntl
import logging
import os
import platform
from pathlib import Path
from typing import TextIO

from lockstep.errors import ConfigError

log = logging.getLogger(__name__)
_held: dict[Path, TextIO] = {}


def hold(directory: Path, key: str) -> None:
    """Holds `directory` until `release`, or until this process ends, however it ends.

    A POSIX record lock (fcntl(2)): unlike flock's it is not inherited by data workers, which may outlive a killed run.
    Raises ConfigError naming the config key and the holder.
    """
    if directory in _held:
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
    _held[directory] = file


def release(directory: Path) -> None:
    if (file := _held.pop(directory, None)) is not None:
        file.close()


def is_held_here(directory: Path) -> bool:
    return directory in _held


def check_free(directory: Path, key: str) -> None:
    """Raises ConfigError if another process holds `directory`."""
    path = directory / "lock"
    if directory in _held or not path.is_file():
        return
    with path.open("r+") as file:
        _lock(file, directory, key)


def _lock(file: TextIO, directory: Path, key: str) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, by fcntl(2)
        file.seek(0)
        holder = file.read().strip() or "another process"
        raise ConfigError(f"{key}={directory}: is being run by {holder}; wait for it or end it") from None
    except OSError as error:
        log.warning(f"{directory}: this file system has no locks ({error}); see to it that only one process uses it")
