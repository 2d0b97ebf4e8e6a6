"""Locks of directories: a run holds its run directory, a sweep its sweep directory."""

import fcntl
import logging
import os
import platform
import time
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Self, TextIO

from lockstep.atomic_files import sync
from lockstep.errors import ConfigError

log = logging.getLogger(__name__)
_PAUSE = 0.05  # seconds between two tries
ASKING = 4  # tries of who only asks; somebody else who only asks holds a lock for a moment
TAKING = 60  # tries of who wants to run: a process that was stopped may need a while to leave


class Lock:
    """Holds a directory until it is closed, or until this process ends, however it ends.

    A POSIX record lock (fcntl(2)): unlike flock's it is not inherited by data workers, which may outlive a killed run. But to
    close any other handle of the same file would give it up: which directories are held here is known by their real paths.
    On NFS the server keeps it, so that it holds between hosts (as flock's would, which Linux turns into these there; flock(2)).
    """

    _here: ClassVar[dict[str, Self]] = {}

    def __init__(self, directory: Path, key: str) -> None:
        """Raises ConfigError naming the config key and the holder, OSError where no lock file can be made."""
        self._path = os.path.realpath(directory)
        with ExitStack() as opened:
            self._file = opened.enter_context((directory / "lock").open("a+"))
            if (error := _lock(self._file, directory, key, fcntl.LOCK_EX, TAKING)) is not None:
                lost = "a second run in this directory would not be refused, and this one looks interrupted to others"
                log.warning(f"{directory}: this file system has no locks ({error.strerror}); {lost}")
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {platform.node()}\n")
            sync(self._file)  # NFS would keep it to this host until the file is closed
            opened.pop_all()
        self._here[self._path] = self

    def close(self) -> None:
        self._here.pop(self._path, None)
        self._file.close()

    @classmethod
    def forget(cls) -> None:
        """Called in a fork, which has none of the locks of the process that it is forked from."""
        cls._here.clear()

    @classmethod
    def is_here(cls, directory: Path) -> bool:
        return os.path.realpath(directory) in cls._here


def check_free(directory: Path, key: str, tries: int = ASKING) -> None:
    """Raises ConfigError if another process holds `directory`. Changes nothing, and needs no right to."""
    path = directory / "lock"
    if Lock.is_here(directory) or not path.is_file():
        return
    with path.open() as file:
        _lock(file, directory, key, fcntl.LOCK_SH, tries)


def is_held(directory: Path) -> bool:
    """Return whether a process holds it, this one or another."""
    try:
        check_free(directory, "")
    except (ConfigError, OSError):
        return True
    return Lock.is_here(directory)


def _lock(file: TextIO, directory: Path, key: str, kind: int, tries: int) -> OSError | None:
    """Returns the error of a file system that refuses locks: ENOLCK, ENOSYS or ENOTSUP. Raises ConfigError if it is held."""
    for attempt in range(tries):
        try:
            fcntl.lockf(file, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, by fcntl(2)
            time.sleep(_PAUSE if attempt < tries - 1 else 0.0)
        except OSError as error:
            return error
        else:
            return None
    file.seek(0)
    holder = file.read().strip() or "another process"
    raise ConfigError(f"{key}={directory}: is being run by {holder}; wait for it or end it")
