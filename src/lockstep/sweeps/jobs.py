"""The jobs of a sweep, as their directories describe them: identities, names and states."""

import hashlib
import itertools
import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from omegaconf import OmegaConf

from lockstep.atomic_files import read_json, write_json
from lockstep.config.overrides import flat
from lockstep.errors import ExitCode
from lockstep.launchers.outcome import killed_by
from lockstep.runs.locks import is_held
from lockstep.runs.record import JOB
from lockstep.runs.saved import FILE, read_yaml, write_config

log = logging.getLogger(__name__)
REPEATS = ("seed", "datamodule.fold")  # keys over which results are averaged
OUTSIDE = ("datamodule.data_dir", "fresh_processes", "mirror")  # keys that do not change a result: the last command's count
OUTPUT = "output.log"  # output of a job's processes
QUEUED, RUNNING, PREEMPTED, FINISHED, FAILED = "queued", "running", "preempted", "finished", "failed"  # in status.json
_LONGEST_NAME = 200  # bytes; file systems take 255
_SAVED = ("key", "number", "overrides", "world_size", "optimized_metric", "optimized_mode", "attempt", "queue")


class JobState(NamedTuple):
    """A job's status, the reason for it, and the metric of a finished job."""

    status: str
    reason: str | None = None
    metric: float | None = None


class JobLaunch(NamedTuple):
    """Command, resources and config with which the sweep's process launches a job."""

    command: tuple[str, ...] = ()
    resources: tuple[Any, ...] = ()  # what the job takes, for the executor and for a person
    config: Any = None  # without Hydra's part
    hydra: Any = None  # Hydra's part
    global_batch_size: int | None = None


@dataclass
class Job:
    """A job of a sweep."""

    directory: Path
    key: str  # identity across resumed and extended sweeps
    overrides: list[str]
    world_size: int
    optimized_metric: str
    optimized_mode: str
    number: int = 0
    attempt: int = 0  # attempts that have begun
    queue: str | None = None  # name in a cluster's queue, until it is known to have left that
    status: str = QUEUED
    reason: str | None = None
    metric: float | None = None
    swept: Sequence[str] = field(default=(), compare=False)  # overrides swept over; once jobs are ranked, those that differ
    launch: JobLaunch = field(default=JobLaunch(), compare=False)

    @classmethod
    def read(cls, directory: Path, is_sweep_running: bool = False) -> Self | None:
        """Return the job of a directory, or None, also for a copy of another job's directory."""
        saved = (read_json(directory / "status.json") or {}).get(JOB, {})
        if not saved.keys() >= {*_SAVED} or not directory.name.endswith(saved["key"]):
            return None
        job = cls(directory, **{name: saved[name] for name in _SAVED})
        job.status, job.reason, job.metric = read_state(directory, is_sweep_running=is_sweep_running)
        return job

    def save(self, **more: str | None) -> None:
        """Write the sweep's part of status.json, and `more`. No process of the job may be writing it."""
        path = self.directory / "status.json"
        write_json(path, {**(read_json(path) or {}), **more, JOB: {name: getattr(self, name) for name in (*_SAVED, "swept")}})

    def make(self) -> None:
        """Make the directory: its config, then status.json, without which it is no job. One that has lost that is resumed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        is_new, launch = not (self.directory / FILE).is_file(), self.launch
        if is_new and launch.hydra is not None:
            write_config(self.directory, launch.config, launch.hydra.hydra, uuid.uuid4().hex, launch.global_batch_size)
        self.save(status=QUEUED if is_new else PREEMPTED, reason=None)

    def begin(self) -> None:
        """Record that an attempt begins. All but the first resume the run."""
        self.attempt += 1
        (self.directory / "metrics.json").unlink(missing_ok=True)  # of metrics that were not finite
        self.save(status=QUEUED if self.status == QUEUED else PREEMPTED)
        self.status, self.reason = RUNNING, None

    def end(self, end: int | JobState) -> None:
        """Set the state in which the attempt has ended, in memory alone."""
        self.status, self.reason, self.metric = read_state(self.directory, end)
        self.queue = None

    def save_end(self) -> None:
        """Write the state in which the attempt has ended. Warn if the disk is full; the run's own files then tell its state."""
        try:
            self.save(status=self.status, reason=self.reason)
        except OSError as error:
            log.warning(f"{self.directory}/status.json can't be written ({error})")

    @property
    def record(self) -> dict[str, Any]:
        """metrics.json of a finished job; empty for others."""
        return (read_record(self.directory) or {}) if self.status == FINISHED else {}


class SweepJobs:
    """The jobs of a sweep by their keys. `is_running`: a process runs the sweep; by default the directory's lock says it."""

    def __init__(self, directory: Path, is_running: bool | None = None) -> None:
        self.directory = directory
        self.is_running = is_held(directory) if is_running is None else is_running
        found = (Job.read(folder, self.is_running) for folder in sorted(directory.glob("[!.]*/")))
        self.jobs = {job.key: job for job in sorted(filter(None, found), key=lambda job: job.number)}

    def in_queue(self) -> list[Job]:
        """Return the jobs that a cluster's queue has, as far as is known."""
        return [job for job in self.jobs.values() if job.queue is not None]

    def register(self, jobs: Sequence[Job]) -> list[Job]:
        """Make the directories of new jobs; return the jobs that have to run, the new and the unfinished ones."""
        for job in jobs:
            if (known := self.jobs.get(job.key)) is not None:
                known.launch, known.swept = job.launch, job.swept
                continue
            job.number = 1 + max((known.number for known in self.jobs.values()), default=-1)
            job.make()
            job.status, job.reason, job.metric = read_state(job.directory)
            self.jobs[job.key] = job
        return [known for known in (self.jobs[job.key] for job in jobs) if known.status != FINISHED]

    @property
    def ranked(self) -> list[Job]:
        """The jobs by their metrics, the best of each metric first; then those that have none, by their numbers."""
        names = varying([job.overrides for job in self.jobs.values()])
        for job in self.jobs.values():
            job.swept = [item for item in job.overrides if item.partition("=")[0] in names]
        return sorted(self.jobs.values(), key=_rank)

    @property
    def counts(self) -> Counter[str]:
        """The number of jobs in each state."""
        return Counter(job.status for job in self.jobs.values())

    @property
    def exit_code(self) -> ExitCode:
        counts = self.counts
        if counts[PREEMPTED] or counts[RUNNING]:
            return ExitCode.PREEMPTED
        return ExitCode.FAILED if counts[FAILED] or counts[QUEUED] else ExitCode.FINISHED


def _rank(job: Job) -> tuple[bool, str, float, int]:
    if job.metric is None:
        return True, "", 0.0, job.number
    return False, job.optimized_metric, -job.metric if job.optimized_mode == "max" else job.metric, job.number


def computed_config(cfg: Any) -> dict[str, Any]:
    """Return the composed config without the keys that do not change a result."""
    content: Any = OmegaConf.to_container(cfg, resolve=False) if OmegaConf.is_config(cfg) else cfg
    for key in ("run_dir", "run_id", "forked_from", *OUTSIDE):
        above, _, name = key.rpartition(".")
        ((content.get(above) if above else content) or {}).pop(name, None)
    return json.loads(json.dumps(content, default=str))


def read_computed_config(directory: Path) -> dict[str, Any]:
    """Return the `computed_config` of the run in a directory; empty if there is none."""
    return computed_config(read_yaml(directory / FILE) or {})


def identity(content: dict[str, Any]) -> str:
    """Return a hash of a job's `computed_config`."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def repetition(config: dict[str, Any]) -> str:
    """Return the identity without the keys over which results are averaged."""
    return identity({key: value for key, value in flat(config).items() if key not in REPEATS})


def directory_name(overrides: Sequence[str], key: str) -> str:
    """Return a readable and unique name: the overridden values, and the identity. Long values lose their middle."""
    pairs = [override.partition("=")[::2] for override in overrides]
    short = [(name.rpartition(".")[2], value if len(value) <= 40 else f"{value[:20]}~{value[-20:]}") for name, value in pairs]
    readable = "_".join(re.sub(r"[^\w=.+~-]+", "_", f"{name}={value}") for name, value in short).strip("_.")
    if len(readable.encode()) > _LONGEST_NAME:
        readable = readable.encode()[:_LONGEST_NAME].decode(errors="ignore") + "~"
    return f"{readable}_{key}" if readable else key


def varying(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Return the override keys in which the jobs differ, in the order of their first appearance."""
    values = [{key: value for key, _, value in (o.partition("=") for o in overrides)} for overrides in jobs]
    return [key for key in dict.fromkeys(itertools.chain(*values)) if len({job.get(key) for job in values}) > 1]


def read_progress(directory: Path) -> dict[str, Any]:
    """Return progress.json, the progress of training; empty if there is none."""
    return read_json(directory / "progress.json") or {}


def read_record(directory: Path) -> dict[str, Any] | None:
    """Return metrics.json, which a run writes last."""
    record = read_json(directory / "metrics.json") or {}
    return record if record.get("optimized_metric") in record.get("metrics", {}) else None


def read_state(directory: Path, end: int | JobState | None = None, is_sweep_running: bool = False) -> JobState:
    """Return a job's state. A record decides, because it is written last.

    `end` is the exit code of the attempt that has just ended, negative for a signal, or the state that its executor knows. If the
    sweep is running, a job that says "running" needs no lock to be believed.
    """
    if (record := read_record(directory)) is not None:
        latest = read_progress(directory).get("metrics", {})
        if infinite := sorted({name for metrics in (latest, record["metrics"]) for name in metrics if metrics[name] is None}):
            return JobState(FAILED, f"{', '.join(infinite)} not finite")
        return JobState(FINISHED, record.get("ended_by"), record["metrics"][record["optimized_metric"]])
    if isinstance(end, JobState):
        return end
    content = read_json(directory / "status.json") or {}
    status, reason = content.get("status", QUEUED), content.get("reason")
    if end == ExitCode.PREEMPTED:
        return JobState(PREEMPTED, reason)
    if end is not None:
        return JobState(FAILED, _why_failed(directory, end, reason if status == FAILED else None))
    if status == FINISHED or (status == RUNNING and not (is_sweep_running or is_held(directory))):
        return JobState(PREEMPTED, "its process has ended without a word")
    return JobState(status, reason)


def _why_failed(directory: Path, code: int, reason: str | None) -> str:
    """Return the signal that has killed a job without a record, or the reason that its run gives, or its last line of output."""
    if code < 0:
        return killed_by(code)
    if code == ExitCode.FINISHED:
        return "ended with code 0 and no record"
    output = directory / OUTPUT
    lines = output.read_text(errors="replace").splitlines() if output.is_file() else []
    return " ".join((reason or ": ".join([f"ended with code {code}", *lines[-1:]])).split())
