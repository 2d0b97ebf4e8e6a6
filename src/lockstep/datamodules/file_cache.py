"""A file that takes long to make, in a folder that several processes and runs share."""

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from lockstep.atomic_files import remove_partial_files


def write_once(path: Path, write: Callable[[], None]) -> None:
    """Call `write`, which makes `path` atomically, unless the file is there. Other processes that want the file wait."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name("lock")):
        if not path.exists():
            remove_partial_files(path.parent)  # killed writers leave them
            write()
