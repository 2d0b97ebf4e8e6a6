"""The jobs of a sweep, as their directories say."""

import contextlib
import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.config.overrides import flat
from lockstep.console import join_first
from lockstep.errors import ConfigError
from lockstep.runs.saved import read_config, read_overrides
from lockstep.sweeps.job_directory import DIED, METADATA, read_metadata, read_record, read_state, write_metadata
from lockstep.sweeps.jobs import Job, repetition
from lockstep.sweeps.states import FINISHED, INTERRUPTED, RUNNING, WAITING, JobState

log = logging.getLogger(__name__)
_JOB_NAME = re.compile(r"(?:^|_)([0-9a-f]{12})$")  # of a job's directory: it ends with the job's identity


class SweepJobs:
    """What each job of a sweep is and how it stands: job.json in its directory, replaced atomically whenever that changes.

    jobs: by identity: number, overrides, directory (relative), devices, optimized_metric, optimized_mode, repetition, config;
    status, reason, metric, attempts; asked: larger for those that were asked for later.
    planned: how many jobs there will be, where a sweeper that hands them out one after the other has said so.
    """

    def __init__(self, sweep_dir: Path) -> None:
        self.directory = sweep_dir
        self.planned: int | None = None
        found = [read_metadata(directory) or _recovered(directory) for directory in sorted(sweep_dir.glob("*/"))]
        ordered = sorted(filter(None, found), key=lambda entry: entry["number"])
        self.jobs: dict[str, dict[str, Any]] = {entry["key"]: entry for entry in ordered}

    def save(self, key: str) -> None:
        """On a full disk that is tried again at the next change: the run's own files have its state."""
        entry = self.jobs[key]
        try:
            write_metadata(self.directory / entry["directory"], entry)
        except OSError as error:
            log.warning(f"{self.directory / entry['directory'] / METADATA} can't be written ({error})")

    def update(self, key: str, **changes: Any) -> None:
        self.jobs[key] |= changes
        self.save(key)

    def in_queue(self) -> dict[str, str]:
        """Returns by job the place in a cluster's queue that its last attempt was given, and is not known to have left."""
        last = {key: job["attempts"][-1] for key, job in self.jobs.items() if job["attempts"]}
        return {key: attempt["queue"] for key, attempt in last.items() if "queue" in attempt and attempt["ended"] is None}

    def reconcile(self) -> None:
        """Jobs that were running when an earlier sweep process died have finished, or were interrupted. Those in a queue have
        not died with it. train.py resume=DIRECTORY may have finished others since, or have trained finished ones further."""
        queued = self.in_queue()
        for key, job in self.jobs.items():
            if key in queued:
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
        """Notes the jobs before the first of them starts; returns those that have to run: the new ones, and the ones that have
        not finished. Raises OSError."""
        asked = 1 + max((job["asked"] for job in self.jobs.values()), default=0)
        for job in jobs:
            known = self.jobs.get(job.key)
            if known is None or not job.directory.is_dir():  # new, or removed by hand
                number = max((one["number"] for one in self.jobs.values()), default=-1) + 1 if known is None else known["number"]
                known = {"number": number, "attempts": [], **read_state(job.directory)._asdict()}
            self.jobs[job.key] = (_facts(job) | known if known["status"] == FINISHED else known | _facts(job)) | {"asked": asked}
            write_metadata(job.directory, self.jobs[job.key])
        return [job for job in jobs if self.jobs[job.key]["status"] != FINISHED]

    def describe_changed(self, jobs: Sequence[Job]) -> str | None:
        """Says which keys have made new jobs of those that an earlier call with the same overrides has left: an edited file, or
        another version's defaults."""
        own = {job.key for job in jobs}
        left = {tuple(sorted(job["overrides"])): job["config"] for key, job in self.jobs.items() if key not in own}
        names, count = set[str](), 0
        for job in jobs:
            config = None if job.key in self.jobs else left.get(tuple(sorted(job.overrides)))
            if config is not None:
                before, now = flat(config), flat(job.config)
                changed = {name for name in before.keys() | now.keys() if before.get(name, ...) != now.get(name, ...)}
                names, count = names | changed, count + bool(changed)
        changes = f"other values of {join_first(sorted(names))} than before"
        return f"{count} of {len(jobs)} jobs have {changes}: they begin anew, beside the earlier ones" if count else None


def _recovered(directory: Path) -> dict[str, Any] | None:
    """Returns the entry of a job whose job.json is damaged or lost, as far as its run says; None where there is no such job."""
    name = _JOB_NAME.search(directory.name)
    with contextlib.suppress(ConfigError):
        if name is not None and (cfg := read_config(directory)) is not None:
            entry = {"key": name[1], "number": 0, "directory": directory.name, "overrides": read_overrides(directory)}
            entry |= {"devices": (read_record(directory) or {}).get("world_size", 0), "repetition": name[1], "config": {}}
            entry |= {"optimized_metric": cfg.optimized_metric, "optimized_mode": cfg.optimized_mode}
            return entry | {"attempts": [], "asked": 0, **read_state(directory)._asdict()}
    return None


def _facts(job: Job) -> dict[str, Any]:
    return {
        "key": job.key,
        "directory": job.directory.name,
        "overrides": list(job.overrides),
        "devices": job.world_size,
        "optimized_metric": job.optimized_metric,
        "optimized_mode": job.optimized_mode,
        "repetition": repetition(job.config),
        "config": job.config,
    }
