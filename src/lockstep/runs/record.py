"""Records of a run for other programs: status.json and metrics.json, replaced atomically."""

import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

from lockstep.atomic_files import read_json, write_json
from lockstep.launchers.environment import queue
from lockstep.places import project
from lockstep.runs.locks import is_held

# Keys of status.json; a sweep describes its job under JOB. Another run may use a directory whose run could not start.
LOST_RANK, COULD_NOT_START, JOB = "has_lost_rank", "could_not_start", "job"
Status = Literal["queued", "running", "finished", "failed", "preempted"]
_PACKAGES = ("lockstep", "torch", "torchvision", "lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy")


def write_status(
    run_dir: Path, status: Status, reason: str | None = None, rank: int | None = None, is_first: bool = False, **more: Any
) -> None:
    """Replace status.json. Keep the sweep's part, and the time of the first start unless `is_first`."""
    path = run_dir / "status.json"
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    known = read_json(path) or {}
    started, owner = now if is_first else known.get("started", now), queue()
    content = {"started": started, "status": status, "reason": reason, "rank": rank, "updated": now}
    content |= {key: known[key] for key in known if key == JOB} | ({} if owner is None else owner.job()) | more
    write_json(path, content | {"host": platform.node(), "pid": os.getpid(), "command": [sys.executable, *sys.argv]})


def actual_status(run_dir: Path) -> str | None:
    """Return the status in status.json, or None. If it is "running" and no process holds the directory, the run was killed: it is
    finished if it has metrics.json, which is written last and removed when a run is resumed, else interrupted."""
    word = (read_json(run_dir / "status.json") or {}).get("status")
    if word != "running" or is_held(run_dir):
        return word
    return "finished" if (run_dir / "metrics.json").is_file() else "interrupted"


def write_failure(
    run_dir: Path, reason: str | None, rank: int | None, has_lost_rank: bool = False, could_not_start: bool = False
) -> None:
    """Record that the run has failed. The first reason stays, except that a lost rank's own reason replaces the report that a
    rank was lost."""
    content = read_json(run_dir / "status.json") or {}
    if content.get("status") == "running" or (content.get(LOST_RANK) and not has_lost_rank):
        flags = {LOST_RANK: has_lost_rank, COULD_NOT_START: could_not_start}
        write_status(run_dir, "failed", reason, rank, **{key: True for key in flags if flags[key]})


def environment() -> dict[str, Any]:
    """Return versions, host, its load and commit, which are needed to judge or reproduce a measurement."""
    status = (_git("status", "--porcelain=v2", "--branch") or "").splitlines()  # begins with "# branch.oid COMMIT"
    changes = [line for line in status if not line.startswith("# ")]
    commit = status[0].split()[-1] if status else "(initial)"  # git's word before the first commit
    return {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "host": platform.node(),
        "cpu_count": os.cpu_count(),
        "load": os.getloadavg()[0],
        "git_commit": None if commit == "(initial)" else commit,
        "git_dirty": bool(changes) if status else None,
    }


def _git(*arguments: str) -> str | None:
    """Return git's output for the project; None outside a checkout or without git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=project(), capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
