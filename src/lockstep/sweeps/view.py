"""The state of a sweep for who looks at it, from any process, and changes nothing."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.errors import ExitCode, config_error
from lockstep.runs.locks import is_held
from lockstep.sweeps.executor import queues
from lockstep.sweeps.job_directory import read_progress, read_record
from lockstep.sweeps.jobs import varying
from lockstep.sweeps.states import FAILED, FINISHED, RUNNING, sweep_exit_code
from lockstep.sweeps.sweep_jobs import SweepJobs


@dataclass(frozen=True)
class JobView:
    """One job.

    entry: what the sweep_jobs says of it.
    varying: the keys of the overrides that are not the same for all jobs.
    """

    key: str
    entry: Mapping[str, Any]
    directory: Path
    varying: Sequence[str]

    @property
    def status(self) -> str:
        return self.entry["status"]

    @property
    def number(self) -> int:
        return self.entry["number"]

    @property
    def overrides(self) -> list[str]:
        """Those that are not the same for all jobs."""
        return [item for item in self.entry["overrides"] if item.partition("=")[0] in self.varying]

    @property
    def label(self) -> str:
        """The overrides with the last words of their keys; the directory's name if none are known."""
        pairs = (item.partition("=") for item in self.overrides)
        label = " ".join(f"{key.lstrip('+').rpartition('.')[2]}={value}" for key, _, value in pairs)
        return label if self.entry["overrides"] else self.directory.name

    @cached_property
    def progress(self) -> dict[str, Any]:
        return read_progress(self.directory)

    @cached_property
    def record(self) -> dict[str, Any]:
        """metrics.json of a job that has finished."""
        return (read_record(self.directory) or {}) if self.status == FINISHED else {}

    @property
    def devices(self) -> int:
        """By its record, of a job that has finished: train.py resume=DIRECTORY may have continued it on others."""
        return int(self.record.get("world_size") or self.entry["devices"])

    @property
    def metric(self) -> float | None:
        """The final one, or the latest of a job that runs."""
        latest = self.progress.get("metrics", {}).get(self.entry["optimized_metric"])
        return latest if self.entry["metric"] is None else self.entry["metric"]

    @property
    def reason(self) -> str | None:
        """Why the job is in its state; if it runs again, why its last attempt has ended."""
        before = self.entry["attempts"][-2:-1] if self.status == RUNNING else []
        return self.entry["reason"] or next((attempt.get("reason") for attempt in before), None)

    @property
    def seconds(self) -> float | None:
        """How long the job has taken by its record, or else its last attempt so far. Nobody knows when one was killed."""
        if isinstance(wall_time := self.record.get("wall_time"), int | float):
            return wall_time  # without the start of the server that jobs are forked from, which the first of them waits for
        if not self.entry["attempts"] or self.status not in (RUNNING, FINISHED, FAILED):
            return None
        last = self.entry["attempts"][-1]
        return max(0.0, (last["ended"] or time.time()) - last["started"])


@dataclass(frozen=True)
class SweepView:
    """All jobs of a sweep. `is_held`: a process runs the sweep."""

    sweep_jobs: SweepJobs
    is_held: bool = True

    @cached_property
    def jobs(self) -> list[JobView]:
        """Returns them by their final metrics, the best of each metric first; then those that have none, by their numbers."""
        entries, folder = self.sweep_jobs.jobs, self.sweep_jobs.directory
        names = varying([entry["overrides"] for entry in entries.values()])
        jobs = [JobView(key, entry, folder / entry["directory"], names) for key, entry in entries.items()]
        return sorted(jobs, key=_rank)

    @property
    def total(self) -> int:
        """How many jobs there will be."""
        return max(self.sweep_jobs.planned or 0, len(self.jobs))

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(job.status for job in self.jobs)

    @cached_property
    def latest(self) -> list[JobView]:
        """The jobs without those that are there again, with other values in an edited file or a newer version: of jobs with the
        same overrides those that were asked for last, in the order of `jobs`."""
        ordered = sorted(self.jobs, key=lambda job: (job.entry.get("asked", 0), job.number))
        keys = {tuple(sorted(job.entry["overrides"])) or job.key: job.key for job in ordered}.values()
        return [job for job in self.jobs if job.key in keys]

    @property
    def exit_code(self) -> ExitCode:
        return sweep_exit_code({job.status for job in self.latest})

    @property
    def best(self) -> JobView | None:
        """Returns None where jobs have several metrics, too."""
        finished = [job for job in self.latest if job.status == FINISHED]
        return finished[0] if len({_measure(job) for job in finished}) == 1 else None


def _measure(job: JobView) -> tuple[str, bool]:
    return job.entry["optimized_metric"], job.entry.get("optimized_mode") == "max"


def _rank(job: JobView) -> tuple[bool, tuple[str, bool], float, int]:
    metric, measure = job.entry["metric"], _measure(job)
    return metric is None, measure, 0.0 if metric is None else -metric if measure[1] else metric, job.number


def look_at(directory: Path) -> SweepView:
    """Reads a sweep. Where no process runs it, jobs that are said to run have been interrupted, unless a cluster has them. Raises
    ConfigError if the directory is no sweep's."""
    is_running, sweep_jobs = is_held(directory), SweepJobs(directory)
    if not sweep_jobs.jobs and not is_running:
        raise config_error("SWEEP_DIR", directory, "names no jobs; accepted is the directory of a sweep")
    if not is_running:
        sweep_jobs.reconcile()
        for queue in queues() if sweep_jobs.in_queue() else ():
            queue.show_state(sweep_jobs)
    return SweepView(sweep_jobs, is_running)
