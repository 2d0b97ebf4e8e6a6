"""What a run leaves behind for other programs: status.json and metrics.json, replaced atomically."""

import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

Status = Literal["running", "finished", "failed", "preempted"]
FILES = ("status.json", "metrics.json")  # of a run directory
_PACKAGES = ("lockstep", "torch", "torchvision", "lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """As replace_text does. NaN and infinity, which JSON does not have, become null."""
    replace_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Replaces `path` in one step: a reader sees the old content or the new, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's content; None where there is no such file."""
    return json.loads(path.read_text()) if path.is_file() else None


def write_status(
    run_dir: Path, status: Status, reason: str | None = None, rank: int | None = None, is_first: bool = False, **facts: int
) -> None:
    """Replaces status.json; the time of the first start, and the facts given before, are kept unless this is the first."""
    path = run_dir / "status.json"
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    kept = {"started": now} | ({} if is_first else read_json(path) or {})
    content = kept | {"status": status, "reason": reason, "rank": rank, "updated": now} | facts
    write_json(path, content | {"host": platform.node(), "pid": os.getpid(), "command": [sys.executable, *sys.argv]})


def start_of(run_dir: Path) -> float:
    """When the run was first started, as of time.time(); 0 where it is not known."""
    said = (read_json(run_dir / "status.json") or {}).get("started")
    return datetime.fromisoformat(said).timestamp() if said else 0.0


def write_failure(run_dir: Path, reason: str | None, rank: int | None) -> None:
    """Says that the run has failed, unless it is said already: the first reason is the one to know."""
    if (read_json(run_dir / "status.json") or {}).get("status") == "running":
        write_status(run_dir, "failed", reason, rank)


def environment() -> dict[str, Any]:
    """Versions, host and commit: what it takes to judge or repeat a number."""
    return {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "host": platform.node(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "git_commit": git_commit(),
        "git_dirty": None if (changes := _git("status", "--porcelain")) is None else changes != "",
    }


def git_commit() -> str | None:
    """Of the code that runs; None outside a checkout."""
    return _git("rev-parse", "HEAD")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says of the code that runs; None outside a checkout or without git."""
    source = Path(__file__).parent
    try:
        done = subprocess.run(["git", *arguments], cwd=source, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
