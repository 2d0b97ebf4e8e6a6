"""Files that are looked at again and again, by the thousand."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Rereading:
    """Reads a file again only where it is another one by stat(2): the one that `read` takes from a directory, by its name."""

    def __init__(self, read: Callable[[Path], Any], name: str) -> None:
        self._read, self._name = read, name
        self._known: dict[Path, tuple[object, float, Any]] = {}

    def __call__(self, directory: Path) -> Any:
        return self.with_age(directory)[0]

    def with_age(self, directory: Path) -> tuple[Any, float]:
        """And for how many seconds it has been known: not by the file's time, which may be another machine's."""
        mark = mark_of(directory / self._name)
        known = self._known.get(directory)
        if known is None or known[0] != mark:
            known = self._known[directory] = (mark, time.monotonic(), self._read(directory))
        return known[2], time.monotonic() - known[1]


def mark_of(path: Path) -> tuple[int, int, int] | None:
    """By which a file is known to be another one than before; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
