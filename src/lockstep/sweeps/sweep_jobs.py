"""The jobs of a sweep, as their directories say."""

import logging
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from omegaconf import DictConfig

from lockstep.atomic_files import read_json, write_json
from lockstep.errors import ExitCode
from lockstep.runs.locks import is_held
from lockstep.runs.record import JOB
from lockstep.runs.saved import write_config
from lockstep.sweeps.jobs import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    WAITING,
    JobState,
    read_record,
    read_state,
    read_status,
    state_after,
    varying,
)

log = logging.getLogger(__name__)
_WORDS = {INTERRUPTED: "preempted", WAITING: "queued"}  # the same states in status.json
_SAVED = ("key", "number", "overrides", "world_size", "optimized_metric", "optimized_mode", "attempt", "queue", "goes_on")


@dataclass
class Job:
    """A job of a sweep. The fields from `command` on are known only to a process that may start it."""

    directory: Path
    key: str  # identity across resumed and extended sweeps
    overrides: list[str]
    world_size: int
    optimized_metric: str
    optimized_mode: str
    number: int = 0
    attempt: int = 0  # attempts that have begun
    queue: str | None = None  # its name in a cluster's queue, until it is known to have left that
    goes_on: bool = False  # it has failed, but not by an error of its own: the next attempt goes on from the last checkpoint
    status: str = WAITING
    reason: str | None = None
    metric: float | None = None
    swept: Sequence[str] = field(default=(), compare=False)  # overrides that are not the same for all jobs, once these are ranked
    command: Sequence[str] = field(default=(), compare=False)
    config: DictConfig | None = field(default=None, compare=False)  # without Hydra's own part
    hydra: Any = field(default=None, compare=False)  # which is this
    pool: str = field(default="cpu", compare=False)
    width: int = field(default=1, compare=False)  # slots of the pool that it takes
    resources: tuple[Any, ...] = field(default=(), compare=False)  # what it takes, in the words of its executor
    swept_keys: Sequence[str] = field(default=(), compare=False)  # keys of overrides in which it may differ from other jobs
    global_batch_size: int | None = field(default=None, compare=False)

    @classmethod
    def read(cls, directory: Path, is_sweep_running: bool = False) -> Self | None:
        """Return the job of a directory, or None. A copy of another job's is none."""
        saved = (read_json(directory / "status.json") or {}).get(JOB, {})
        if not saved.keys() >= {*_SAVED} or not directory.name.endswith(saved["key"]):
            return None
        job = cls(directory, **{name: saved[name] for name in _SAVED})
        job.status, job.reason, job.metric = read_state(directory, is_sweep_running=is_sweep_running)
        return job

    def save(self, directory: Path | None = None, /, **more: str | None) -> None:
        """Write the sweep's part of status.json, and `more`. No process of the job may be writing it."""
        path = (directory or self.directory) / "status.json"
        write_json(path, {**(read_json(path) or {}), **more, JOB: {name: getattr(self, name) for name in _SAVED}})

    def make(self) -> None:
        """Make the directory of a job that is to begin, as .NAME.tmp, and rename it: it is there whole or not at all. Set an
        earlier one aside."""
        partial = self.directory.with_name(f".{self.directory.name}.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if self.config is not None:
            write_config(partial, self.config, self.hydra, uuid.uuid4().hex, self.global_batch_size)
        self.save(partial, status="queued", reason=None)
        if self.directory.is_dir():
            self.directory.replace(tempfile.mkdtemp(prefix=f"{self.directory.name}.failed-", dir=self.directory.parent))
        partial.replace(self.directory)

    def begin(self) -> None:
        """Note that an attempt begins, before it does. What was stopped goes on; what has failed by itself begins anew."""
        begins_anew = self.status == FAILED and not self.goes_on and not is_held(self.directory)
        self.attempt, self.goes_on = self.attempt + 1, False
        if begins_anew or not self.directory.is_dir():
            self.make()
        else:
            self.save(**({} if self.status == WAITING else {"status": "preempted"}))
        self.status, self.reason = RUNNING, None

    def end(self, end: int | JobState) -> None:
        """Note how the attempt has ended, in memory alone."""
        self.status, self.reason, self.metric = state_after(self.directory, end)
        self.goes_on = self.status == FAILED and read_status(self.directory)[0] in ("running", "preempted")
        self.queue = None

    def save_end(self) -> None:
        """Write how the attempt has ended. On a full disk the files of the run say it."""
        try:
            self.save(status=_WORDS.get(self.status, self.status), reason=self.reason)
        except OSError as error:
            log.warning(f"{self.directory}/status.json can't be written ({error})")

    @property
    def record(self) -> dict[str, Any]:
        """metrics.json of a job that has finished."""
        return (read_record(self.directory) or {}) if self.status == FINISHED else {}


class SweepJobs:
    """The jobs of a sweep by their keys, as their directories say. `is_running`: a process runs the sweep."""

    def __init__(self, directory: Path, is_running: bool | None = None) -> None:
        self.directory = directory
        self.is_running = is_held(directory) if is_running is None else is_running
        found = (Job.read(folder, self.is_running) for folder in sorted(directory.glob("[!.]*/")))
        self.jobs = {job.key: job for job in sorted(filter(None, found), key=lambda job: job.number)}

    def in_queue(self) -> list[Job]:
        """Return the jobs that a cluster's queue has, as far as is known."""
        return [job for job in self.jobs.values() if job.queue is not None]

    def register(self, jobs: Sequence[Job]) -> list[Job]:
        """Make the directories of new jobs, before the first job starts; return the jobs that have to run: the new ones, and
        those that have not finished."""
        for job in jobs:
            if (known := self.jobs.get(job.key)) is None:
                job.number = 1 + max((known.number for known in self.jobs.values()), default=-1)
                job.make()
                job.status, job.reason, job.metric = read_state(job.directory)
                self.jobs[job.key] = job
            else:
                for one in fields(Job):
                    if not one.compare:  # what the latest command says
                        setattr(known, one.name, getattr(job, one.name))
        return [known for known in (self.jobs[job.key] for job in jobs) if known.status != FINISHED]

    @property
    def ranked(self) -> list[Job]:
        """The jobs by their final metrics, the best of each metric first; then those that have none, by their numbers."""
        names = varying([job.overrides for job in self.jobs.values()])
        for job in self.jobs.values():
            job.swept = [item for item in job.overrides if item.partition("=")[0] in names]
        return sorted(self.jobs.values(), key=_rank)

    @property
    def counts(self) -> Counter[str]:
        return Counter(job.status for job in self.jobs.values())

    @property
    def exit_code(self) -> ExitCode:
        counts = self.counts
        if counts[INTERRUPTED] or counts[RUNNING]:
            return ExitCode.PREEMPTED
        return ExitCode.FAILED if counts[FAILED] or counts[WAITING] else ExitCode.FINISHED


def _rank(job: Job) -> tuple[bool, str, float, int]:
    metric = 0.0 if job.metric is None else -job.metric if job.optimized_mode == "max" else job.metric
    return job.metric is None, job.optimized_metric + job.optimized_mode, metric, job.number
