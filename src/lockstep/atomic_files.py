"""Files that other programs read while they are replaced: the old content or the new, never a part."""

import errno
import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

log = logging.getLogger(__name__)

_PARTIAL = ".partial"
_NOT_SUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES}
Stamp = tuple[int, int, int]  # another one for the next file of that name
_named = set[Path]()  # unreadable files that have been named: once is enough for whoever polls


def read_stamp(path: Path) -> Stamp | None:
    """Another one when a file is replaced or appended to, whatever the clock says; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def write_json(path: Path, content: dict[str, Any], indent: int | None = 2) -> None:
    """Replaces a file as replace_text does. NaN and infinity, which JSON does not have, become null."""
    replace_text(path, json.dumps(_finite(content), indent=indent, allow_nan=False) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Replaces `path` in one step: a reader sees the old content or the new, never a part."""
    with replacing(path) as file:
        file.write(text)


@contextmanager
def replacing(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """A file to write, which takes the place of `path` when all went well, and is gone otherwise. What text its encoding lacks is
    written as Python escapes it: names of files may be no text."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    newline, errors = ("", "backslashreplace") if mode == "w" else (None, None)
    try:
        with partial.open(mode, newline=newline, errors=errors) as file:
            yield file
            sync(file)
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()


def sync(file: IO[Any]) -> None:
    """Brings to the disk what was written so far, also for who opens the file by its name."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes renames in it last: fsync(2) of the folder itself. A file system that has no such thing, as CIFS and some in user
    space, is let off; one that fails at it is not."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise


def remove_partial_files(folder: Path) -> None:
    """Removes what killed writers have left in a folder; nobody else may be writing there."""
    for path in folder.glob(f".*{_PARTIAL}"):
        path.unlink(missing_ok=True)


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


def is_like(value: object, shape: Any) -> bool:
    """Returns whether what was read has this shape: a type, (one of these), [that of each item], {NAME: that of its value} or
    {str: that of each value}. A NAME with a ? may be absent. True is no number."""
    if isinstance(shape, tuple):
        return value in shape
    if isinstance(shape, list):
        return isinstance(value, list) and all(is_like(item, shape[0]) for item in value)
    if not isinstance(shape, dict):
        return isinstance(value, shape) and not isinstance(value, bool)
    if not isinstance(value, dict):
        return False
    if str in shape:
        return all(is_like(item, shape[str]) for item in value.values())
    present = {name: kind for name, kind in shape.items() if not name.endswith("?") or name[:-1] in value}
    return all(is_like(value.get(name.rstrip("?"), ...), kind) for name, kind in present.items())


def read_json(path: Path, shape: Any = dict, fits: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any] | None:
    """The file's content; None where there is no such file, or none that can be read, or one that holds something else than
    it should by its shape, see `is_like`, and by `fits`: a warning names that one."""
    try:
        content = json.loads(read_regular(path), parse_constant=lambda _: None)  # NaN, of another writer
        if is_like(content, shape) and fits(content):
            return content
        reason = "holds something else than it should"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        reason = f"is not readable ({error})"
    if path not in _named:
        log.warning(f"{path}: {reason}; going on without it")
        _named.add(path)
    return None
