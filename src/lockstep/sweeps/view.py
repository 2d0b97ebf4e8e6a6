"""How a sweep stands, for who looks at it again and again, from any process, and changes nothing."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.atomic_files import stamp_of
from lockstep.console import say
from lockstep.errors import ExitCode, config_error
from lockstep.launchers.slurm import Unanswered
from lockstep.runs.locks import is_held
from lockstep.sweeps.job_directory import SEARCH, progress_of, record_of, trials_of
from lockstep.sweeps.jobs import varying
from lockstep.sweeps.manifest import UNREADABLE, Manifest
from lockstep.sweeps.states import FAILED, FINISHED, RUNNING, UNKNOWN, WAITING, exit_code_of

ASK_QUEUE = 10.0  # seconds between two questions to a cluster's queue


@dataclass(frozen=True)
class JobView:
    """One job.

    overrides: those that are not the same for all jobs.
    share: of training that is done, from 0 to 1; None where that is not known.
    seconds: of its last attempt so far; left: that it will take at its pace.
    reason: of its state; earlier: for which an attempt before this one has ended.
    """

    key: str
    number: int
    directory: str
    overrides: tuple[str, ...]
    devices: int
    status: str
    reason: str | None
    earlier: str | None
    tries: int
    epoch: str
    step: int | None
    share: float | None
    metric_name: str
    mode: str
    metric: float | None
    rate: float | None
    seconds: float | None
    left: float | None


@dataclass(frozen=True)
class SweepView:
    """All of them.

    is_held: a process runs the sweep; is_queued: a cluster has some of its jobs.
    trials: of a search, those in all that it is to have; not all of them are jobs yet.
    left: seconds that the rest takes, by what like jobs have taken; None where nothing is known.
    """

    directory: Path
    jobs: Sequence[JobView]
    is_held: bool
    is_queued: bool
    trials: int | None
    left: float | None

    @property
    def counts(self) -> Counter[str]:
        return Counter(job.status for job in self.jobs)

    @property
    def has_ended(self) -> bool:
        return not self.is_held and not self.is_queued

    @property
    def exit_code(self) -> ExitCode:
        return exit_code_of(self.counts)

    @property
    def best(self) -> JobView | None:
        """Of those that have finished, by the metric of the first."""
        done = [job for job in self.jobs if job.status == FINISHED and job.metric is not None]
        alike = [job for job in done if job.metric_name == done[0].metric_name]
        sign = -1 if alike and alike[0].mode == "max" else 1
        return min(alike, key=lambda job: sign * (job.metric or 0.0), default=None)


class Rereading:
    """Reads a file again only where it is another one by stat(2): the one that `read` takes from a directory, by its name."""

    def __init__(self, read: Callable[[Path], Any], name: str) -> None:
        self._read, self._name = read, name
        self._known: dict[Path, tuple[object, float, Any]] = {}

    def __call__(self, directory: Path) -> Any:
        return self.with_age(directory)[0]

    def with_age(self, directory: Path) -> tuple[Any, float]:
        """And for how many seconds it has been known: not by the file's time, which may be another machine's."""
        mark = stamp_of(directory / self._name)
        known = self._known.get(directory)
        if known is None or known[0] != mark:
            known = self._known[directory] = (mark, time.monotonic(), self._read(directory))
        return known[2], time.monotonic() - known[1]


class Views:
    """Of the jobs of a manifest, each as it stands now."""

    def __init__(self) -> None:
        self._progress, self._record = Rereading(progress_of, "progress.json"), Rereading(record_of, "metrics.json")
        self.trials = Rereading(trials_of, SEARCH)

    def of(self, manifest: Manifest, only: Sequence[str] | None = None) -> list[JobView]:
        """All of them, or `only` some, by their keys."""
        names = varying([job["overrides"] for job in manifest.jobs.values()])
        jobs = {key: manifest.jobs[key] for key in (manifest.jobs if only is None else only)}
        return [self._view(key, job, manifest.directory / job["directory"], names) for key, job in jobs.items()]

    def _view(self, key: str, job: Mapping[str, Any], folder: Path, keys: Sequence[str]) -> JobView:
        is_begun, is_running = bool(job["attempts"]) or job["status"] != WAITING, job["status"] == RUNNING
        is_timed = job["status"] in (RUNNING, FINISHED, FAILED)  # nobody knows when one was killed
        progress, age = self._progress.with_age(folder) if is_begun else ({}, 0.0)
        record = (self._record(folder) or {}) if job["status"] == FINISHED else {}
        last = job["attempts"][-1] if job["attempts"] else {}
        metric = job["metric"] if job["metric"] is not None else progress.get("metrics", {}).get(job["optimized_metric"])
        left = progress.get("seconds_left") if is_running else None
        return JobView(
            key=key,
            number=job["number"],
            directory=job["directory"],
            overrides=tuple(item for item in job["overrides"] if item.partition("=")[0] in keys),
            devices=job["devices"],
            status=job["status"],
            reason=job["reason"],
            earlier=next((one["reason"] for one in reversed(job["attempts"][:-1]) if isinstance(one.get("reason"), str)), None),
            tries=len(job["attempts"]),
            epoch=_of(progress.get("epoch"), progress.get("epochs")),
            step=progress.get("step"),
            share=1.0 if job["status"] == FINISHED else progress.get("share"),
            metric_name=job["optimized_metric"],
            mode=job.get("optimized_mode", "min"),
            metric=metric,
            rate=record.get("samples_per_second", progress.get("samples_per_second")),
            seconds=max(0.0, (last["ended"] or time.time()) - last["started"]) if last and is_timed else None,
            left=None if left is None else max(0.0, left - age),
        )


def _of(epoch: Any, epochs: Any) -> str:
    if epoch is None:
        return ""
    return f"{epoch}/{epochs}" if epochs is not None and epochs > 0 else str(epoch)


def seen(manifest: Manifest, views: Views, is_held: bool = True) -> SweepView:
    jobs, trials = views.of(manifest), views.trials(manifest.directory)
    left = _left(jobs, to_come=max(0, (trials or 0) - len(jobs)))
    first = max((job.number for job in jobs), default=-1) + 1
    jobs += [_unreadable(number, name) for number, name in enumerate(manifest.unreadable, first)]
    return SweepView(manifest.directory, jobs, is_held, bool(manifest.in_queue()), trials, left)


def _unreadable(number: int, directory: str) -> JobView:
    """The row of a directory of which nobody knows which job it is."""
    unknown = dict.fromkeys(("earlier", "step", "share", "metric", "rate", "seconds", "left"))
    what = {"key": directory, "number": number, "directory": directory, "status": FAILED, "reason": UNREADABLE}
    known: Any = {"overrides": (), "devices": 0, "tries": 0, "epoch": "", "metric_name": "", "mode": "min"}
    return JobView(**what, **unknown, **known)


class Watched:
    """A sweep's directory that is looked at again and again. It is read again only where it has changed."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError for a directory that is no sweep's."""
        self.directory = directory
        self._views, self._manifest, self._mark = Views(), Manifest(directory), stamp_of(directory / "manifest.json")
        self._was_held, self._due = True, 0.0
        if not self._manifest.jobs and not is_held(directory):
            raise config_error("SWEEP_DIR", directory, "names no jobs; accepted is the directory of a sweep")

    def look(self) -> SweepView:
        """Raises ConfigError where the directory has gone."""
        if not self.directory.is_dir():
            raise config_error("SWEEP_DIR", self.directory, "is gone; accepted is the directory of a sweep")
        is_running = is_held(self.directory)
        if (mark := stamp_of(self._manifest.path)) != self._mark:
            # what runs it knows of all jobs, otherwise their directories may know more; what can't be read stands as it did
            read = Manifest(self.directory, asks_directories=not is_running or mark is None)
            if read.jobs:
                self._manifest, self._mark, self._was_held = read, mark, True
        if not is_running and (self._was_held or (self._manifest.in_queue() and time.monotonic() > self._due)):
            as_it_stands(self._manifest)
            self._due = time.monotonic() + ASK_QUEUE
        self._was_held = is_running
        return seen(self._manifest, self._views, is_running)


def as_it_stands(manifest: Manifest) -> Manifest:
    """For who only looks: jobs that are said to run, in a directory that no sweep holds, have been interrupted, unless a
    cluster has them."""
    if not is_held(manifest.directory):
        manifest.settle()
        if manifest.in_queue():
            from lockstep.extras.slurm_queue import launcher as slurm

            try:
                slurm.settle(manifest)
            except Unanswered as error:
                say(str(error))
                for key in manifest.in_queue():
                    manifest.jobs[key] |= {"status": UNKNOWN, "reason": "SLURM does not answer"}
    return manifest


def _left(jobs: Sequence[JobView], to_come: int) -> float | None:
    """Jobs that wait take as long as those of their width have, those `to_come` of a search as usual, as many at a time as run
    now."""
    took: dict[int, list[float]] = {}
    for job in jobs:
        if job.seconds is not None and (job.status == FINISHED or job.left is not None):
            took.setdefault(job.devices, []).append(job.seconds + (job.left or 0.0))
    running = [job for job in jobs if job.status == RUNNING]
    if not took or not running:
        return None
    usual = {devices: statistics.median(seconds) for devices, seconds in took.items()}
    otherwise = statistics.median(usual.values())

    def whole(job: JobView) -> float:
        return usual.get(job.devices, otherwise)

    now = [max(0.0, whole(job) - (job.seconds or 0.0)) if job.left is None else job.left for job in running]
    rest = sum(whole(job) for job in jobs if job.status == WAITING) + otherwise * to_come
    return max(*now, (sum(now) + rest) / len(now)) if len(now) > 1 else now[0] + rest
