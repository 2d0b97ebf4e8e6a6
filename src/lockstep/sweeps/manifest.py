"""What a sweep is on disk: one file that says which jobs there are and in which state each is."""

import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.atomic_files import read_json, write_json
from lockstep.config.overrides import flat
from lockstep.console import join_first
from lockstep.sweeps.job_directory import CALL, DIED, METADATA, NUMBER, read_metadata, read_state, write_metadata
from lockstep.sweeps.jobs import Job, repetition
from lockstep.sweeps.states import FAILED, FINISHED, INTERRUPTED, RUNNING, STATES, WAITING, JobState

log = logging.getLogger(__name__)

UNREADABLE = f"its {METADATA} can't be read, and nothing else says which job it is"
GONE = "its directory is gone"
_JOB_NAME = re.compile(r"(?:^|_)([0-9a-f]{12}(?:-\d+)?)$")  # of a job's directory: it ends with the job's identity
_ATTEMPT = {"started": int | float, "ended": NUMBER, "queue?": str}
_JOB = {"number": int, "directory": str, "devices": int, "optimized_metric": str, "overrides": [str], "attempts": [_ATTEMPT]}
_JOB |= {"status": STATES, "reason": str | None, "metric": NUMBER, "asked?": int, "repetition?": str, "optimized_mode?": str}
_SHAPE = {"calls?": [CALL], "cwd?": str | None, "planned?": int | None, "jobs": {str: _JOB}}
_UNKNOWN = {"overrides": [], "devices": 0, "optimized_metric": "", "attempts": []}
_UNKNOWN |= {"status": FAILED, "reason": UNREADABLE, "metric": None}


class Manifest:
    """manifest.json of a sweep directory, replaced atomically whenever a job changes. Jobs that it does not name, because it is
    damaged or lost, are read from their directories.

    jobs: by identity: number, overrides, directory (relative), status, reason, metric, command, attempts; asked: larger for those
    that were asked for later.
    planned: how many jobs there will be, where a sweeper that hands them out one after the other has said so.
    calls: the distinct {program, flags, overrides} that there have been for this directory, in their order, in `cwd`.
    """

    def __init__(self, sweep_dir: Path) -> None:
        self.directory = sweep_dir
        self.path = sweep_dir / "manifest.json"
        content = read_json(self.path, _SHAPE, _names_jobs) or {}
        self.calls: list[dict[str, Any]] = content.get("calls", [])
        self.cwd: str | None = content.get("cwd")
        self.planned: int | None = content.get("planned")
        self.git_commit: str | None = content.get("git_commit")
        self.jobs: dict[str, dict[str, Any]] = content.get("jobs", {})
        self._add_unnamed_jobs()

    def _add_unnamed_jobs(self) -> None:
        named = {job["directory"] for job in self.jobs.values()}
        names = [path.name for path in sorted(self.directory.glob("*/")) if path.name not in named]
        keys = {match[1]: self.directory / name for name in names if (match := _JOB_NAME.search(name)) is not None}
        metadata = {key: read_metadata(directory) for key, directory in keys.items() if not self._has_directory(key)}
        for key in sorted(metadata, key=lambda key: metadata[key] is None):
            self._add_unnamed_job(key, keys[key], metadata[key])
        if metadata:
            self.jobs = dict(sorted(self.jobs.items(), key=lambda item: item[1]["number"]))

    def _has_directory(self, key: str) -> bool:
        return key in self.jobs and (self.directory / self.jobs[key]["directory"]).is_dir()

    def _add_unnamed_job(self, key: str, directory: Path, metadata: dict[str, Any] | None) -> None:
        if metadata is None:
            self.jobs[key] = {"number": self._next_number(), "directory": directory.name, **_UNKNOWN}
            return
        names = ("number", "overrides", "devices", "optimized_metric", "optimized_mode", "command", "directory")
        entry = {name: metadata[name] for name in names} | {"repetition": repetition(metadata["config"])}
        self.jobs[key] = entry | _state(directory)
        self.cwd = self.cwd or metadata["cwd"]
        if (call := metadata.get("call")) is not None and call not in self.calls:
            self.calls.append(call)

    def _next_number(self) -> int:
        return max((job["number"] for job in self.jobs.values()), default=-1) + 1

    def save(self) -> None:
        """Writes it; on a full disk that is tried again at the next change: the jobs' own directories have their states."""
        names = ("calls", "cwd", "planned", "git_commit", "jobs")
        try:
            write_json(self.path, {name: getattr(self, name) for name in names}, indent=None)  # of many jobs: a third of the time
        except OSError as error:
            log.warning(f"{self.path} can't be written ({error})")

    def update(self, key: str, **changes: Any) -> None:
        self.jobs[key] |= changes
        self.save()

    def add_call(self, program: str, flags: Sequence[str], overrides: Sequence[str], cwd: Path) -> None:
        call = {"program": program, "flags": [*flags], "overrides": [*overrides]}
        self.calls = [known for known in self.calls if known != call] + [call]
        self.cwd = str(cwd)
        self.save()

    def in_queue(self) -> dict[str, str]:
        """Returns by job the place in a cluster's queue that its last attempt was given, and is not known to have left."""
        last = {key: job["attempts"][-1] for key, job in self.jobs.items() if job["attempts"]}
        return {key: attempt["queue"] for key, attempt in last.items() if "queue" in attempt and attempt["ended"] is None}

    def reconcile(self) -> None:
        """Jobs that were running when an earlier sweep process died have finished, or were interrupted. Those in a queue have
        not died with it. train.py resume=DIRECTORY may have finished others since, or have trained finished ones further. Those
        whose directories are gone keep the metric that they have ended with, and run again when they are asked for, which a
        search does not do."""
        queued, gone = self.in_queue(), [key for key in self.jobs if not self._has_directory(key)]
        for key in gone:
            if self.jobs[key]["status"] == FINISHED:
                self.jobs[key]["reason"] = GONE
            elif self.planned is None and self.jobs[key]["reason"] == UNREADABLE:
                del self.jobs[key]
            elif self.planned is None and key not in queued:
                self.jobs[key] |= JobState(WAITING, GONE)._asdict()
        for key, job in self.jobs.items():
            if job["reason"] == UNREADABLE or key in queued:
                continue
            state = read_state(self.directory / job["directory"])
            if job["status"] == RUNNING:
                if state.status == WAITING:  # it had not come to write anything
                    state = JobState(INTERRUPTED, DIED)
                if job["attempts"] and job["attempts"][-1]["ended"] is None:
                    job["attempts"][-1]["ended"] = time.time()
            elif state.status != FINISHED:
                continue
            job |= state._asdict()

    def register(self, jobs: Sequence[Job]) -> list[Job]:
        """Notes the jobs; returns those that have to run: the new ones, and the ones that have not finished."""
        asked = 1 + max((job.get("asked", 0) for job in self.jobs.values()), default=0)
        for job in jobs:
            self._note(job)
            self.jobs[job.key]["asked"] = asked
        self.save()
        todo = [job for job in jobs if self.jobs[job.key]["status"] != FINISHED]
        for job in jobs:
            if job in todo or read_metadata(job.directory) is None:
                metadata = {"key": job.key, "number": self.jobs[job.key]["number"], "config": job.config, **_facts(job)}
                write_metadata(job.directory, metadata | {"call": self.calls[-1], "cwd": self.cwd})
        return todo

    def describe_changed(self, jobs: Sequence[Job]) -> str | None:
        """Says which keys have made new jobs of those that an earlier call with the same overrides has left: an edited file, or
        another version's defaults."""
        own = {job.key for job in jobs}
        left = {tuple(sorted(job["overrides"])): job["directory"] for key, job in self.jobs.items() if key not in own}
        names, count = set[str](), 0
        for job in jobs:
            directory = None if job.key in self.jobs else left.get(tuple(sorted(job.overrides)))
            if directory is not None and (metadata := read_metadata(self.directory / directory)) is not None:
                before, now = flat(metadata["config"]), flat(job.config)
                changed = {name for name in before.keys() | now.keys() if before.get(name, ...) != now.get(name, ...)}
                names, count = names | changed, count + bool(changed)
        changes = f"other values of {join_first(sorted(names))} than before"
        return f"{count} of {len(jobs)} jobs have {changes}: they begin anew, beside the earlier ones" if count else None

    def _note(self, job: Job) -> None:
        """A job that is new, unreadable, or whose directory is gone, is as its directory says; one that has finished stays as it
        ran."""
        known = self.jobs.get(job.key)
        if known is None or known["reason"] == UNREADABLE or not job.directory.is_dir():
            known = {"number": self._next_number() if known is None else known["number"]} | _state(job.directory)
        facts = {"directory": job.directory.name, "repetition": repetition(job.config), **_facts(job)}
        self.jobs[job.key] = facts | known if known["status"] == FINISHED else known | facts


def _names_jobs(content: dict[str, Any]) -> bool:
    return all(job["directory"].endswith(key) for key, job in content["jobs"].items())


def _facts(job: Job) -> dict[str, Any]:
    facts = {"optimized_metric": job.optimized_metric, "optimized_mode": job.optimized_mode}
    return facts | {"overrides": list(job.overrides), "devices": job.world_size, "command": list(job.command)}


def _state(directory: Path) -> dict[str, Any]:
    return read_state(directory)._asdict() | {"attempts": []}
