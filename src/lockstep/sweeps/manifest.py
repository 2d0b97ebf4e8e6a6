"""What a sweep is on disk: one file that says which jobs there are and how each stands."""

import time
from pathlib import Path
from typing import Any

from lockstep.atomic_files import read_json, write_json

FINISHED, FAILED, INTERRUPTED, RUNNING, WAITING = "finished", "failed", "interrupted", "running", "waiting"


class Manifest:
    """manifest.json of a sweep directory, replaced atomically whenever a job changes.

    jobs: by identity: number, overrides, directory (relative), status, reason, metric, command, attempts.
    commands: the distinct command lines that were given for this directory, in their order, run in `cwd`.
    """

    def __init__(self, sweep_dir: Path) -> None:
        self.path = sweep_dir / "manifest.json"
        content = read_json(self.path) or {}
        self.commands: list[list[str]] = content.get("commands", [])
        self.cwd: str | None = content.get("cwd")
        self.git_commit: str | None = content.get("git_commit")
        self.jobs: dict[str, dict[str, Any]] = content.get("jobs", {})

    def save(self) -> None:
        content = {"commands": self.commands, "cwd": self.cwd, "git_commit": self.git_commit, "jobs": self.jobs}
        write_json(self.path, content)

    def update(self, key: str, **changes: Any) -> None:
        self.jobs[key] |= changes
        self.save()

    def add_command(self, command: list[str], cwd: Path) -> None:
        self.commands = [known for known in self.commands if known != command] + [command]
        self.cwd = str(cwd)
        self.save()

    def settle(self) -> None:
        """Judges jobs that were running when an earlier sweep process died: they have finished, or were interrupted."""
        for key, job in self.jobs.items():
            if job["status"] == RUNNING:
                directory = self.path.parent / job["directory"]
                status = (read_json(directory / "status.json") or {}).get("status")
                record = read_json(directory / "metrics.json") if status == FINISHED else None
                if record is not None:
                    status, reason, metric = judge_record(directory, record)
                    self.jobs[key] |= {"status": status, "reason": reason, "metric": metric}
                else:
                    self.jobs[key] |= {"status": INTERRUPTED, "reason": "the sweep process died"}
                if job["attempts"] and job["attempts"][-1]["ended"] is None:
                    job["attempts"][-1]["ended"] = time.time()
        self.save()


def judge_record(directory: Path, record: dict[str, Any]) -> tuple[str, str | None, float | None]:
    """Status, reason and metric of a job that has written its record: metrics that are not finite, in the record or in
    its last epoch, are a failure."""
    latest = (read_json(directory / "progress.json") or {}).get("metrics", {})
    if infinite := sorted({name for metrics in (latest, record["metrics"]) for name, value in metrics.items() if value is None}):
        return FAILED, f"{', '.join(infinite)} not finite", None
    return FINISHED, None, record["metrics"][record["optimized_metric"]]
