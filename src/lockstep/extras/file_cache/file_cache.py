"""A file that takes long to make, in a folder that several processes, and runs, share."""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from lockstep.atomic_files import remove_partial_files

log = logging.getLogger(__name__)


def write_once(path: Path, write: Callable[[], None], size: int | None = None) -> None:
    """Has a file, of `size` bytes where that is known, written if it is not there. Whoever else wants it meanwhile waits. What
    writers that were killed have left there is removed; where `write` fails, nothing is left that was not there before."""
    if _is_there(path, size):
        return
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        with _held(path.with_name("lock")):
            if not _is_there(path, size):
                write()
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # somebody else's is in it
                folder.rmdir()
        raise


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Locks it for this process alone by a POSIX record lock (fcntl(2)), which data workers do not inherit, and which ends with
    the process. Where what is done meanwhile fails, a file that was made for it is removed, and who waited for it makes
    another."""
    is_new = not lock.exists()
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)
        except OSError as error:
            log.warning(f"{lock.parent}: this file system has no locks ({error}); other processes may write the same file")
        else:
            with suppress(FileNotFoundError):  # who held it has failed, and removed the folder that was made for it
                remove_partial_files(lock.parent)
        is_current = lock.exists() and os.path.samestat(os.fstat(file.fileno()), lock.stat())
        try:
            with nullcontext() if is_current else _held(lock):
                yield
        except BaseException:
            if is_new and is_current:
                lock.unlink(missing_ok=True)
            raise


def _is_there(path: Path, size: int | None) -> bool:
    return path.is_file() and size in (None, path.stat().st_size)
