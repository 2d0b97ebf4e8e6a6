"""Files that other programs read while they are replaced: the old content or the new, never a part."""

import errno
import functools
import json
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

log = logging.getLogger(__name__)

_PARTIAL = ".partial"
Stamp = tuple[int, int, int]  # changes when another file takes the name
_warn_once = functools.cache(log.warning)  # for callers that poll


def read_stamp(path: Path) -> Stamp | None:
    """Return a value that changes when a file is replaced or appended to, whatever the clock says; None without a file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def write_json(path: Path, content: dict[str, Any], indent: int | None = 2) -> None:
    """Replace a file as replace_text does. NaN and infinity, which JSON does not have, become null."""
    replace_text(path, json.dumps(_finite(content), indent=indent, allow_nan=False) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Replace `path` in one step: a reader sees the old content or the new, never a part."""
    with replacing(path) as file:
        file.write(text)


@contextmanager
def replacing(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Yield a file that replaces `path` if the block succeeds and is deleted otherwise. Text that its encoding lacks is written
    with Python's escapes: names of files may be no text."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    newline, errors = ("", "backslashreplace") if mode == "w" else (None, None)
    try:
        with partial.open(mode, newline=newline, errors=errors) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable by fsync(2), on file systems that have it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of CIFS
            raise
    finally:
        os.close(descriptor)


def remove_partial_files(folder: Path) -> None:
    """Remove what killed writers have left in a folder; nobody else may be writing there."""
    for path in folder.glob(f".*{_PARTIAL}"):
        path.unlink(missing_ok=True)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the file's content; None if there is no file, or if it can't be read, which is said once a file."""
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        _warn_once(f"{path}: is not readable ({error}); going on without it")
        return None
    return content if isinstance(content, dict) else None
