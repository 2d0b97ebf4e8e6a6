"""Locks of directories: a run holds its run directory, a sweep its sweep directory."""

import fcntl
import os
import platform
import time
from pathlib import Path
from typing import IO, ClassVar, Self

from lockstep.errors import ConfigError

_PATIENCE = 3.0  # seconds; a process that was stopped may need a while to exit


class Lock:
    """Lock a directory until `close`, or until this process ends in any way.

    This is a POSIX record lock (fcntl(2)). Unlike flock's, it is not inherited by data workers, which may outlive a killed run.
    Closing any other handle of the file releases it, so this process records the real paths that it has locked.
    """

    _here: ClassVar[dict[str, Self]] = {}

    def __init__(self, directory: Path, key: str) -> None:
        """Create the directory if it is missing. Raise ConfigError naming the config key and the holder, OSError on a file system
        without locks."""
        directory.mkdir(parents=True, exist_ok=True)
        self._path, self._pid = os.path.realpath(directory), os.getpid()
        self._file = (directory / "lock").open("a+")
        deadline = time.monotonic() + _PATIENCE
        while _is_locked(self._file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                self._file.seek(0)
                holder = self._file.read().strip() or "another process"
                self._file.close()
                raise ConfigError(f"{key}={directory}: is being run by {holder}; wait for it or end it")
            time.sleep(0.05)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {platform.node()}\n")
        self._file.flush()
        self._here[self._path] = self

    def close(self) -> None:
        self._here.pop(self._path, None)
        self._file.close()

    @classmethod
    def is_here(cls, directory: Path) -> bool:
        """Return whether this process has the lock; a fork inherits none of its parent's."""
        lock = cls._here.get(os.path.realpath(directory))
        return lock is not None and lock._pid == os.getpid()


def is_held(directory: Path) -> bool:
    """Return whether any process holds the directory's lock. Needs no permission to write."""
    path = directory / "lock"
    if Lock.is_here(directory) or not path.is_file():
        return Lock.is_here(directory)
    with path.open() as file:
        return _is_locked(file, fcntl.LOCK_SH)


def _is_locked(file: IO[str], kind: int) -> bool:
    """Take the lock, or return whether another process has it."""
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, by fcntl(2)
        return True
    return False
