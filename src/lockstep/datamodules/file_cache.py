"""Files that take long to create, in a folder that several processes and runs share."""

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from lockstep.atomic_files import remove_partial_files


def write_once(path: Path, write: Callable[[], None]) -> None:
    """Call `write`, which creates `path` atomically, unless the file exists. Other processes that need the file wait."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name("lock")):
        if not path.exists():
            remove_partial_files(path.parent)  # killed writers leave them
            write()
