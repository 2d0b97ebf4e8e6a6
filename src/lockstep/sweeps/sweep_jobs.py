"""The jobs of a sweep and how they stand, as their directories say."""

import contextlib
import itertools
import logging
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lockstep.atomic_files import read_json, write_json
from lockstep.config.overrides import flat
from lockstep.console import join_first
from lockstep.errors import ExitCode
from lockstep.runs.locks import is_held
from lockstep.runs.record import JOB
from lockstep.runs.saved import GLOBAL_BATCH, read_run_id, write_config
from lockstep.runs.validation import without_hydra
from lockstep.sweeps.jobs import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    NUMBER,
    RUNNING,
    WAITING,
    Exit,
    JobState,
    read_computed_config,
    read_record,
    read_state,
    read_status,
    state_after,
    sweep_exit_code,
    varying,
)

log = logging.getLogger(__name__)
_SAID = {INTERRUPTED: "preempted", WAITING: "queued"}  # the same states in status.json
_ATTEMPTS = "attempts"
_FACTS = {"key": str, "number": int, "overrides": [str], "world_size": int, "optimized_metric": str, "optimized_mode": str}
_FACTS |= {"repetition": str, "attempt": int, "began": NUMBER, "ended": NUMBER, "queue": str | None, "goes_on": (True, False)}


@dataclass(frozen=True)
class Start:
    """Start of a job.

    width: slots of `pool`.
    config: the composed config, Hydra's own part with it, of which the run is made; None where there is one.
    content: the same in plain containers, as far as it is computed: `key` is its hash.
    swept: the keys of the overrides that are not the same for all jobs.
    fresh: in an interpreter of its own, not forked from one that has imported torch.
    stop_deadline: seconds in which the job, asked to stop, ends by itself.
    resources: what it takes, in the words of its executor.
    """

    command: tuple[str, ...]
    pool: str = "cpu"
    width: int = 1
    config: DictConfig | None = None
    content: dict[str, Any] = field(default_factory=dict)
    swept: tuple[str, ...] = ()
    fresh: bool = False
    stop_deadline: float = 0.0
    resources: tuple[str, ...] = ()
    global_batch_size: int | None = None


@dataclass
class Job:
    """A job as its directory says. What its status.json holds as `job` comes first.

    key: identifies the job across resumed and extended sweeps.
    attempt: how many have begun. began, ended: when the last one did, by time.time().
    queue: the job's name in a cluster's queue, until it is known to have left that.
    goes_on: it has failed, but not by an error of its own: the next attempt goes on from the last checkpoint.
    swept: the overrides that are not the same for all jobs.
    start: of a job that this process may start.
    """

    directory: Path
    key: str
    overrides: list[str]
    world_size: int
    optimized_metric: str
    optimized_mode: str
    repetition: str = ""
    number: int = 0
    attempt: int = 0
    began: float | None = None
    ended: float | None = None
    queue: str | None = None
    goes_on: bool = False
    status: str = WAITING
    reason: str | None = None
    metric: float | None = None
    swept: Sequence[str] = field(default=(), compare=False)
    start: Start = field(default=Start(()), compare=False)

    @classmethod
    def read(cls, directory: Path, is_sweep_running: bool = False) -> Self | None:
        """Return the job of a directory, or None. A copy of another job's is none."""
        facts: Any = (read_json(directory / "status.json") or {}).get(JOB)
        if not facts or not directory.name.endswith(facts["key"]):
            return None
        job = cls(directory, **{name: facts[name] for name in _FACTS})
        job.status, job.reason, job.metric = read_state(directory)
        is_under_way = job.began is not None and job.ended is None  # until the sweep has noted its end
        if is_under_way and is_sweep_running and job.status != FINISHED:
            job.status, job.reason = RUNNING if read_status(directory)[0] == "running" else WAITING, None
        return job

    def save(self, directory: Path | None = None, **said: str | None) -> None:
        """Write the sweep's part of status.json, and what else is to be said there. No process of the job may be writing it."""
        path = (directory or self.directory) / "status.json"
        write_json(path, {**(read_json(path) or {}), **said, JOB: {name: getattr(self, name) for name in _FACTS}})

    def make(self) -> None:
        """Make the directory of a job that is to begin, as .NAME.tmp, and rename it: it is there whole or not at all. What is in
        one whose status.json was lost stays."""
        place, start = self.directory, self.start
        partial = place.with_name(f".{place.name}.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if start.config is not None and read_run_id(place) is None:
            config, run_id = start.config, uuid.uuid4().hex
            with as_composed(config):
                write_config(partial, without_hydra(config), config.hydra, run_id, start.global_batch_size)
        self.save(partial, status="preempted" if (place / "checkpoints").exists() else "queued", reason=None)
        if place.is_dir():
            for path in sorted(partial.iterdir()):  # .hydra first
                path.replace(place / path.name)
            partial.rmdir()
        else:
            partial.rename(place)

    def begin(self, queue: str | None = None) -> None:
        """Note that an attempt begins, before it does. What was stopped goes on; what a failed attempt has left is set aside."""
        begins_anew = self.status == FAILED and not self.goes_on and not is_held(self.directory)
        self.attempt, self.began, self.ended, self.queue, self.goes_on = self.attempt + 1, time.time(), None, queue, False
        if begins_anew:
            _archive(self.directory)
        if begins_anew or not self.directory.is_dir():
            self.make()
        else:
            self.save(None, **({} if self.status == WAITING else {"status": "preempted"}))
        self.status, self.reason = RUNNING, None

    def end(self, end: Exit, ended_for: JobState | None = None) -> None:
        """Note how the attempt has ended, in memory alone; `ended_for` is the state of one that the sweep has ended."""
        self.status, self.reason, self.metric = state_after(self.directory, end, ended_for)
        self.goes_on = self.status == FAILED and read_status(self.directory)[0] in ("running", "preempted")
        self.ended, self.queue = time.time(), None

    def save_end(self) -> None:
        """On a full disk the files of the run say how it has ended."""
        try:
            self.save(status=_SAID.get(self.status, self.status), reason=self.reason)
        except OSError as error:
            log.warning(f"{self.directory}/status.json can't be written ({error})")

    @property
    def pool(self) -> str:
        return self.start.pool

    @property
    def width(self) -> int:
        return self.start.width

    @property
    def label(self) -> str:
        """The swept overrides with the last words of their keys."""
        pairs = (item.partition("=") for item in self.swept)
        return " ".join(f"{key.lstrip('+').rpartition('.')[2]}={value}" for key, _, value in pairs)

    @property
    def record(self) -> dict[str, Any]:
        """metrics.json of a job that has finished."""
        return (read_record(self.directory) or {}) if self.status == FINISHED else {}

    @property
    def seconds(self) -> float | None:
        """Return the seconds of the job by its record, or else of its last attempt so far; None where one was killed."""
        if isinstance(wall_time := self.record.get("wall_time"), int | float):
            return wall_time
        if self.began is None or self.status not in (RUNNING, FINISHED, FAILED):
            return None
        return max(0.0, (self.ended or time.time()) - self.began)


@contextlib.contextmanager
def as_composed(config: DictConfig) -> Iterator[None]:
    """Let ${hydra:} have the values of a job's config, not the sweep's."""
    asked: Any = HydraConfig.instance()
    own, asked.cfg = asked.cfg, config  # its set_config copies
    try:
        yield
    finally:
        asked.cfg = own


def _archive(directory: Path) -> None:
    """Move what an attempt has left to attempts/NUMBER. TensorBoard passes over the new names of its event files: it would show
    the attempt as another run."""
    left = [path for path in directory.glob("*") if path.name != _ATTEMPTS]
    numbers = (directory / _ATTEMPTS / str(number) for number in itertools.count(1))
    place = next(path for path in numbers if not path.exists())
    place.mkdir(parents=True)
    for path in left:
        path.replace(place / path.name)
    for events in [*place.rglob("*tfevents*")]:
        events.rename(events.with_name(events.name.replace("tfevents", "tf-events")))


class SweepJobs:
    """The jobs of a sweep by their keys, as their directories say.

    planned: how many jobs there will be, where a sweeper that hands them out one after the other has said so.
    is_running: a process runs the sweep.
    """

    def __init__(self, directory: Path, is_running: bool | None = None) -> None:
        self.directory, self.planned = directory, 0
        self.is_running = is_held(directory) if is_running is None else is_running
        found = (Job.read(folder, self.is_running) for folder in sorted(directory.glob("[!.]*/")))
        self.jobs = {job.key: job for job in sorted(filter(None, found), key=lambda job: job.number)}

    def in_queue(self) -> list[Job]:
        """Return the jobs that a cluster's queue has, as far as is known."""
        return [job for job in self.jobs.values() if job.queue is not None]

    def register(self, jobs: Sequence[Job]) -> list[Job]:
        """Make the directories of new jobs, before the first job starts; return the jobs that have to run: the new ones, and
        those that have not finished. Raise OSError."""
        for job in jobs:
            if job.key in self.jobs:
                self.jobs[job.key].start = job.start
                continue
            job.number = 1 + max((known.number for known in self.jobs.values()), default=-1)
            job.make()
            job.status, job.reason, job.metric = read_state(job.directory)
            self.jobs[job.key] = job
        return [known for known in (self.jobs[job.key] for job in jobs) if known.status != FINISHED]

    def describe_changed(self, jobs: Sequence[Job]) -> str | None:
        """Say which keys have made new jobs of those that an earlier call with the same overrides has left: an edited file, or
        another version's defaults."""
        own = {job.key for job in jobs}
        left = {tuple(sorted(job.overrides)): job.directory for key, job in self.jobs.items() if key not in own}
        names, count = set[str](), 0
        for job in jobs:
            directory = None if job.key in self.jobs else left.get(tuple(sorted(job.overrides)))
            if directory is not None and (before := flat(read_computed_config(directory))):
                now = flat(job.start.content)
                changed = {name for name in before.keys() | now.keys() if before.get(name, ...) != now.get(name, ...)}
                changed -= {GLOBAL_BATCH, *(name for name, value in now.items() if "${" in str(value))}
                names, count = names | changed, count + bool(changed)
        changes = f"other values of {join_first(sorted(names))} than before"
        return f"{count} of {len(jobs)} jobs have {changes}: they begin anew, beside the earlier ones" if count else None

    @property
    def ranked(self) -> list[Job]:
        """The jobs by their final metrics, the best of each metric first; then those that have none, by their numbers."""
        names = varying([job.overrides for job in self.jobs.values()])
        for job in self.jobs.values():
            job.swept = [item for item in job.overrides if item.partition("=")[0] in names]
        return sorted(self.jobs.values(), key=_rank)

    @property
    def total(self) -> int:
        return max(self.planned, len(self.jobs))

    @property
    def counts(self) -> Counter[str]:
        return Counter(job.status for job in self.jobs.values())

    @property
    def exit_code(self) -> ExitCode:
        return sweep_exit_code(self.counts)

    @property
    def best(self) -> Job | None:
        """The best job; None if none has finished, or if they have several metrics."""
        finished = [job for job in self.ranked if job.status == FINISHED]
        return finished[0] if len({(job.optimized_metric, job.optimized_mode) for job in finished}) == 1 else None


def _rank(job: Job) -> tuple[bool, str, float, int]:
    metric = 0.0 if job.metric is None else -job.metric if job.optimized_mode == "max" else job.metric
    return job.metric is None, job.optimized_metric + job.optimized_mode, metric, job.number
