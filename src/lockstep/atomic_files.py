"""Files that other programs read while they are replaced: the old content or the new, never a part."""

import errno
import fcntl
import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Literal

log = logging.getLogger(__name__)

_PARTIAL = ".partial"
_NOT_SUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES}
Stamp = tuple[int, int, int]  # by which a file is told from the next of its name
_named = set[Path]()  # unreadable files that have been named: once is enough for whoever polls


def stamp_of(path: Path) -> Stamp | None:
    """Another one when a file is replaced or appended to, whatever the clock says; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def write_json(path: Path, content: dict[str, Any]) -> None:
    """As replace_text does. NaN and infinity, which JSON does not have, become null."""
    replace_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Replaces `path` in one step: a reader sees the old content or the new, never a part."""
    with replacing(path) as file:
        file.write(text)


@contextmanager
def replacing(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """A file to write, which takes the place of `path` when all went well, and is gone otherwise."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        with partial.open(mode, newline="" if mode == "w" else None) as file:
            yield file
            sync(file)
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()


def sync(file: IO[Any]) -> None:
    """What was written so far is on the disk, also for who opens the file by its name."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path, *, strict: bool = False) -> None:
    """Makes renames in it last: fsync(2) of the folder itself. A file system that has no such thing, as CIFS and some in user
    space, is let off unless `strict`; one that fails at it is not."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if strict or error.errno not in _NOT_SUPPORTED:
            raise


def remove_partial_files(folder: Path) -> None:
    """What writers that were killed have left in a folder; nobody else may be writing there."""
    for path in folder.glob(f".*{_PARTIAL}"):
        path.unlink(missing_ok=True)


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
    """By this process alone: a POSIX record lock (fcntl(2)), which data workers do not inherit, and which ends with the process.
    Where what is done meanwhile fails, a file that was made for it is removed, and who waited for it makes another."""
    is_new = not lock.exists()
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)
        except OSError as error:
            log.warning(f"{lock.parent}: this file system has no locks ({error}); other processes may write the same file")
        else:
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


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read_regular(path: Path) -> str:
    """The text of a file. Raises OSError for what is none: a pipe, say, would be waited for."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return path.read_text()


def read_json(path: Path, fits: Callable[[dict[str, Any]], bool] | None = None) -> dict[str, Any] | None:
    """The file's content; None where there is no such file, or none that can be read, or one that holds something else than
    it should by `fits`: a warning names that one."""
    try:
        content = json.loads(read_regular(path))
        if isinstance(content, dict) and (fits is None or fits(content)):
            return content
        reason = "holds something else than it should"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = f"is not readable ({error})"
    if path not in _named:
        log.warning(f"{path}: {reason}; going on without it")
        _named.add(path)
    return None
