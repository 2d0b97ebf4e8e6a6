"""The state of a sweep for who looks at it, from any process and again and again, and changes nothing."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from lockstep.atomic_files import Stamp, stamp_of
from lockstep.errors import ExitCode, config_error
from lockstep.runs.locks import is_held
from lockstep.sweeps.executor import launchers_with_queue
from lockstep.sweeps.job_directory import read_progress, read_record
from lockstep.sweeps.jobs import varying
from lockstep.sweeps.manifest import UNREADABLE, Manifest
from lockstep.sweeps.states import FAILED, FINISHED, RUNNING, WAITING, sweep_exit_code


@dataclass(frozen=True)
class JobView:
    """One job.

    entry: what the manifest says of it.
    overrides: those that are not the same for all jobs.
    progress: its progress.json; record: its metrics.json.
    seconds: how long its last attempt has taken so far; left: how long it will still take at its pace.
    """

    key: str
    entry: Mapping[str, Any]
    overrides: tuple[str, ...] = ()
    progress: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    left: float | None = None

    @property
    def status(self) -> str:
        return self.entry["status"]

    @property
    def number(self) -> int:
        return self.entry["number"]

    @property
    def metric(self) -> float | None:
        """The final one, or the latest of a job that runs."""
        latest = self.progress.get("metrics", {}).get(self.entry["optimized_metric"])
        return latest if self.entry["metric"] is None else self.entry["metric"]

    @property
    def reason(self) -> str | None:
        """Why the job is in its state; of one that runs, why its attempt before this one has ended."""
        earlier = (attempt.get("reason") for attempt in reversed(self.entry["attempts"][:-1]))
        return self.entry["reason"] or (next(filter(None, earlier), None) if self.status == RUNNING else None)


@dataclass(frozen=True)
class SweepView:
    """All jobs of a manifest, or the `keys` in their order and those that can't be read. `is_held`: a process runs the sweep."""

    manifest: Manifest
    is_held: bool = True
    keys: Sequence[str] | None = None

    @cached_property
    def jobs(self) -> list[JobView]:
        entries, names = self.manifest.jobs, varying([entry["overrides"] for entry in self.manifest.jobs.values()])
        keys = [*entries] if self.keys is None else [key for key in self.keys if key in entries]
        jobs = [_job_view(key, entries[key], self.manifest.directory, names) for key in keys]
        return jobs + _unreadable_jobs(self.manifest)

    @property
    def total(self) -> int:
        """How many jobs there will be."""
        return max(self.manifest.planned or 0, len(self.jobs))

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(job.status for job in self.jobs)

    @property
    def is_queued(self) -> bool:
        """A cluster has some of its jobs."""
        return bool(self.manifest.in_queue())

    @property
    def has_ended(self) -> bool:
        return not self.is_held and not self.is_queued

    @property
    def exit_code(self) -> ExitCode:
        return sweep_exit_code(self.counts)

    @cached_property
    def ranked(self) -> list[JobView]:
        """The jobs by their final metric, the best first, those without one last."""

        def rank(job: JobView) -> tuple[bool, float]:
            metric, sign = job.entry["metric"], -1 if job.entry.get("optimized_mode") == "max" else 1
            return metric is None, 0.0 if metric is None else sign * metric

        return sorted(self.jobs, key=rank)

    @property
    def best(self) -> JobView | None:
        return next((job for job in self.ranked if job.status == FINISHED and job.entry["metric"] is not None), None)

    @cached_property
    def left(self) -> float | None:
        """Seconds until all have ended: jobs that wait take as long as those of their width have, jobs that are still to come as
        long as usual, as many at a time as run now. None where nothing is known."""
        took: dict[int, list[float]] = {}
        for job in self.jobs:
            if job.seconds is not None and (job.status == FINISHED or job.left is not None):
                took.setdefault(job.entry["devices"], []).append(job.seconds + (job.left or 0.0))
        running = [job for job in self.jobs if job.status == RUNNING]
        if not took or not running:
            return None
        usual = {devices: statistics.median(seconds) for devices, seconds in took.items()}
        otherwise = statistics.median(usual.values())

        def duration(job: JobView) -> float:
            return usual.get(job.entry["devices"], otherwise)

        now = [max(0.0, duration(job) - (job.seconds or 0.0)) if job.left is None else job.left for job in running]
        rest = sum(duration(job) for job in self.jobs if job.status == WAITING) + otherwise * (self.total - len(self.jobs))
        return max(*now, (sum(now) + rest) / len(now)) if len(now) > 1 else now[0] + rest


def _job_view(key: str, entry: Mapping[str, Any], sweep_dir: Path, varying_keys: Sequence[str]) -> JobView:
    folder, attempts = sweep_dir / entry["directory"], entry["attempts"]
    progress, since = _read(read_progress, folder, stamp_of(folder / "progress.json"))
    record = _read(read_record, folder, stamp_of(folder / "metrics.json"))[0] if entry["status"] == FINISHED else None
    is_timed = entry["status"] in (RUNNING, FINISHED, FAILED)  # nobody knows when one was killed
    left = progress.get("seconds_left") if entry["status"] == RUNNING else None
    return JobView(
        key=key,
        entry=entry,
        overrides=tuple(item for item in entry["overrides"] if item.partition("=")[0] in varying_keys),
        progress=progress,
        record=record or {},
        seconds=max(0.0, (attempts[-1]["ended"] or time.time()) - attempts[-1]["started"]) if attempts and is_timed else None,
        left=None if left is None else max(0.0, left - (time.monotonic() - since)),
    )


@lru_cache(maxsize=10_000)
def _read(read: Callable[[Path], Any], folder: Path, _stamp: Stamp | None) -> tuple[Any, float]:
    """What `read` takes from a folder, once for each stamp of its file, and since when that is known here: the file's own time
    may be another machine's."""
    return read(folder), time.monotonic()


def _unreadable_jobs(manifest: Manifest) -> list[JobView]:
    """The directories of which nobody knows which job they are."""
    first = max((job["number"] for job in manifest.jobs.values()), default=-1) + 1
    known = {"devices": 0, "status": FAILED, "reason": UNREADABLE, "metric": None, "optimized_metric": "", "attempts": []}
    known |= {"overrides": []}
    return [
        JobView(name, known | {"number": number, "directory": name}, overrides=(name,))
        for number, name in enumerate(manifest.unreadable, first)
    ]


class SweepWatcher:
    """Looks at a sweep's directory again and again."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError for a directory that is no sweep's."""
        self.directory, self._manifest = directory, Manifest(directory)
        if not self._manifest.jobs and not is_held(directory):
            raise config_error("SWEEP_DIR", directory, "names no jobs; accepted is the directory of a sweep")

    def look(self) -> SweepView:
        """Raises ConfigError where the directory has gone."""
        if not self.directory.is_dir():
            raise config_error("SWEEP_DIR", self.directory, "is gone; accepted is the directory of a sweep")
        is_running = is_held(self.directory)
        read = Manifest(self.directory, asks_directories=not is_running)  # who runs it knows of all jobs
        if read.jobs:  # what can't be read is as it was
            self._manifest = bring_up_to_date(read)
        return SweepView(self._manifest, is_running)


def bring_up_to_date(manifest: Manifest) -> Manifest:
    """For who only looks: jobs that are said to run, in a directory that no sweep holds, have been interrupted, unless a
    cluster has them."""
    if not is_held(manifest.directory):
        manifest.reconcile()
        if manifest.in_queue():
            for launcher in launchers_with_queue():
                launcher.reconcile(manifest)
    return manifest
