"""Find run directories below a folder, and the one that `resume=last` names."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from lockstep.atomic_files import read_json
from lockstep.errors import config_error
from lockstep.runs.directory import SWEEP_FILE
from lockstep.runs.record import actual_status
from lockstep.runs.saved import FILE

_DEPTH = 4  # levels of folders below the working directory; logs/NAME/RUN has 3


def run_directories(folder: Path, depth: int = sys.maxsize) -> Iterator[Path]:
    """Yield the directories of runs and sweep jobs at most `depth` levels below a folder. Follow links to folders, because logs/
    may be a link to a larger disk, but not links to runs."""
    for name, folders, _ in os.walk(folder, followlinks=True):
        path = Path(name)
        is_run = (path / FILE).is_file()
        if is_run and not path.is_symlink():
            yield path
        if is_run or len(path.relative_to(folder).parts) == depth:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def newest_unfinished(folder: Path) -> Path:
    """Return the run below a folder whose status was written last, among runs that have neither finished nor are running. Prefer
    runs that did not fail before their first checkpoint.

    Jobs of sweeps are excluded, because a sweep is resumed as a whole.
    """
    runs = (run for run in run_directories(folder, _DEPTH) if not (run.parent / SWEEP_FILE).exists())
    candidates = [run for run in runs if actual_status(run) not in ("finished", "running")]
    if not candidates:
        sweeps = "a sweep goes on by its own command, or by lockstep sweep resume"
        raise config_error("resume", "last", f"there is no unfinished run below {folder}; {sweeps}")
    return max(candidates, key=_resumability)


def _resumability(run: Path) -> tuple[bool, str]:
    status = read_json(run / "status.json") or {}
    can_resume = status.get("status") != "failed" or any(run.glob("checkpoints/*"))
    return can_resume, str(status.get("updated", ""))
