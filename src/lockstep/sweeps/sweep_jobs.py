"""The jobs of a sweep and how they stand, as their directories say."""

import itertools
import logging
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from lockstep.atomic_files import is_like, read_json, write_json
from lockstep.config.overrides import flat
from lockstep.console import join_first
from lockstep.errors import ExitCode
from lockstep.runs.locks import is_held
from lockstep.runs.record import JOB
from lockstep.runs.saved import GLOBAL_BATCH, read_overrides, read_run_id, write_config
from lockstep.runs.validation import without_hydra
from lockstep.sweeps.jobs import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    NUMBER,
    RUNNING,
    WAITING,
    Exit,
    Job,
    JobState,
    read_computed_config,
    read_record,
    read_state,
    read_status,
    repetition,
    state_after,
    sweep_exit_code,
    varying,
)

log = logging.getLogger(__name__)
_SAID = {INTERRUPTED: "preempted", WAITING: "queued"}  # the same states in status.json
_ATTEMPTS = "attempts"
_JOB_NAME = re.compile(r"(?:^|_)([0-9a-f]{12})$")
_FACTS = {"key": str, "number": int, "overrides": [str], "world_size": int, "optimized_metric": str, "optimized_mode": str}
_FACTS |= {"repetition": str, "attempt": int, "began": NUMBER, "ended": NUMBER, "queue": str | None, "goes_on": (True, False)}


@dataclass
class JobView:
    """A job as its directory says. What its status.json holds as `job` comes first.

    attempt: how many have begun. began, ended: when the last one did, by time.time().
    queue: the job's name in a cluster's queue, until it is known to have left that.
    goes_on: it has failed, but not by an error of its own: the next attempt goes on from the last checkpoint.
    swept: the overrides that are not the same for all jobs.
    """

    directory: Path
    key: str
    overrides: list[str]
    world_size: int
    optimized_metric: str
    optimized_mode: str
    repetition: str
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

    @classmethod
    def of(cls, job: Job, number: int) -> Self:
        metric, same = (job.optimized_metric, job.optimized_mode), repetition(job.config)
        return cls(job.directory, job.key, list(job.overrides), job.world_size, *metric, same, number)

    @classmethod
    def read(cls, directory: Path, is_sweep_running: bool) -> Self | None:
        """Return the job of a directory, as far as what is left there says, or None. A copy of another job's is none."""
        facts: Any = (read_json(directory / "status.json") or {}).get(JOB)
        if is_like(facts, _FACTS) and directory.name.endswith(facts["key"]):
            view = cls(directory, **{name: facts[name] for name in _FACTS})
        elif (name := _JOB_NAME.search(directory.name)) is not None and (config := read_computed_config(directory)):
            metric, mode = (str(config.get(key)) for key in ("optimized_metric", "optimized_mode"))
            size = (read_record(directory) or {}).get("world_size") or 0
            view = cls(directory, name[1], read_overrides(directory), size, metric, mode, repetition(config), number=-1)
        else:
            return None
        view.status, view.reason, view.metric = read_state(directory)
        if view.is_under_way and is_sweep_running and view.status != FINISHED:
            view.status = RUNNING if read_status(directory)[0] == "running" else WAITING
            view.reason = None
        return view

    @property
    def is_under_way(self) -> bool:
        """True from the start of an attempt until the sweep has noted its end."""
        return self.began is not None and self.ended is None

    def save(self, directory: Path | None = None, **said: str | None) -> None:
        """Write the sweep's part of status.json, and what else is to be said there. No process of the job may be writing it."""
        path = (directory or self.directory) / "status.json"
        write_json(path, {**(read_json(path) or {}), **said, JOB: {name: getattr(self, name) for name in _FACTS}})

    def make(self, job: Job) -> None:
        """Make the directory of a job that is to begin, as .NAME.tmp, and rename it: it is there whole or not at all."""
        place = self.directory
        partial = place.with_name(f".{place.name}.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if job.composed is not None:
            job.composed.run_id = uuid.uuid4().hex
            config = without_hydra(job.composed)
            write_config(partial, config, job.composed.hydra, job.composed.run_id, job.global_batch_size)
        self.save(partial, status="queued", reason=None)
        if place.is_dir():  # attempts that have failed are kept there
            for path in sorted(partial.iterdir()):  # .hydra first
                path.replace(place / path.name)
            partial.rmdir()
        else:
            partial.rename(place)

    def begin(self, job: Job, queue: str | None = None) -> None:
        """Note that an attempt begins, before it does. What was stopped goes on; what a failed attempt has left is set aside."""
        goes_on = self.status != FAILED or self.goes_on or is_held(self.directory)
        has_run = job.composed is None or read_run_id(self.directory) is not None
        self.attempt, self.began, self.ended, self.queue, self.goes_on = self.attempt + 1, time.time(), None, queue, False
        if goes_on and has_run and self.directory.is_dir():
            self.save(None, **({} if self.status == WAITING else {"status": "preempted"}))
        else:
            _archive(self.directory)
            self.make(job)
        self.status, self.reason = RUNNING, None

    def end(self, end: Exit, ended_for: JobState | None = None) -> None:
        """Note how the attempt has ended, in memory alone."""
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
    def label(self) -> str:
        """The swept overrides with the last words of their keys; the directory's name if none are known."""
        pairs = (item.partition("=") for item in self.swept)
        label = " ".join(f"{key.lstrip('+').rpartition('.')[2]}={value}" for key, _, value in pairs)
        return label if self.overrides else self.directory.name

    @property
    def record(self) -> dict[str, Any]:
        """metrics.json of a job that has finished."""
        return (read_record(self.directory) or {}) if self.status == FINISHED else {}

    @property
    def devices(self) -> int:
        """Return those of its record, once it has finished: train.py resume=DIRECTORY may have continued it on others."""
        return int(self.record.get("world_size") or self.world_size)

    @property
    def seconds(self) -> float | None:
        """Return the seconds of the job by its record, or else of its last attempt so far; None where one was killed."""
        if isinstance(wall_time := self.record.get("wall_time"), int | float):
            return wall_time
        if self.began is None or self.status not in (RUNNING, FINISHED, FAILED):
            return None
        return max(0.0, (self.ended or time.time()) - self.began)


def _archive(directory: Path) -> None:
    """Move what an attempt has left to attempts/NUMBER. TensorBoard passes over the new names of its event files: it would show
    the attempt as another run."""
    left = [path for path in directory.glob("*") if path.name != _ATTEMPTS]
    if not left:
        return
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
        found = (JobView.read(folder, self.is_running) for folder in sorted(directory.glob("[!.]*/")))
        self.jobs = {view.key: view for view in sorted(filter(None, found), key=lambda view: view.number)}

    def in_queue(self) -> list[JobView]:
        """Return the jobs that a cluster's queue has, as far as is known."""
        return [view for view in self.jobs.values() if view.queue is not None]

    def register(self, jobs: Sequence[Job]) -> list[Job]:
        """Make the directories of new jobs, before the first job starts; return the jobs that have to run: the new ones, and
        those that have not finished. Raise OSError."""
        for job in jobs:
            known = self.jobs.get(job.key)
            if known is not None and known.number >= 0:
                continue
            number = 1 + max((view.number for view in self.jobs.values()), default=-1)
            view = self.jobs[job.key] = JobView.of(job, number)
            if known is None:
                view.make(job)
            else:  # its status.json was lost
                view.status, view.reason, view.metric = known.status, known.reason, known.metric
                view.save(status=_SAID.get(view.status, view.status), reason=view.reason)
        return [job for job in jobs if self.jobs[job.key].status != FINISHED]

    def describe_changed(self, jobs: Sequence[Job]) -> str | None:
        """Say which keys have made new jobs of those that an earlier call with the same overrides has left: an edited file, or
        another version's defaults."""
        own = {job.key for job in jobs}
        left = {tuple(sorted(view.overrides)): view.directory for key, view in self.jobs.items() if key not in own}
        names, count = set[str](), 0
        for job in jobs:
            directory = None if job.key in self.jobs else left.get(tuple(sorted(job.overrides)))
            if directory is not None and (before := flat(read_computed_config(directory))):
                now = flat(job.config)
                changed = {name for name in before.keys() | now.keys() if before.get(name, ...) != now.get(name, ...)}
                changed -= {GLOBAL_BATCH, *(name for name, value in now.items() if "${" in str(value))}
                names, count = names | changed, count + bool(changed)
        changes = f"other values of {join_first(sorted(names))} than before"
        return f"{count} of {len(jobs)} jobs have {changes}: they begin anew, beside the earlier ones" if count else None

    @property
    def ranked(self) -> list[JobView]:
        """The jobs by their final metrics, the best of each metric first; then those that have none, by their numbers."""
        names = varying([view.overrides for view in self.jobs.values()])
        for view in self.jobs.values():
            view.swept = [item for item in view.overrides if item.partition("=")[0] in names]
        return sorted(self.jobs.values(), key=_rank)

    @property
    def total(self) -> int:
        return max(self.planned, len(self.jobs))

    @property
    def counts(self) -> Counter[str]:
        return Counter(view.status for view in self.jobs.values())

    @property
    def exit_code(self) -> ExitCode:
        return sweep_exit_code({view.status for view in self.jobs.values()})

    @property
    def best(self) -> JobView | None:
        """The best job; None if none has finished, or if they have several metrics."""
        finished = [view for view in self.ranked if view.status == FINISHED]
        return finished[0] if len({(view.optimized_metric, view.optimized_mode) for view in finished}) == 1 else None


def _rank(view: JobView) -> tuple[bool, str, float, int]:
    metric = 0.0 if view.metric is None else -view.metric if view.optimized_mode == "max" else view.metric
    return view.metric is None, view.optimized_metric + view.optimized_mode, metric, view.number
