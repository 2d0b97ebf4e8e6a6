"""Tables of a sweep's jobs: on the terminal, with means over seeds and folds, and results.csv."""

import csv
import io
import itertools
import re
import statistics
import textwrap
from pathlib import Path
from typing import Any

from hydra.utils import get_object

from lockstep import console
from lockstep.atomic_files import replace_text
from lockstep.errors import config_error
from lockstep.sweeps.jobs import FINISHED, REPEATS, Job, SweepJobs, read_computed_config, read_progress, repetition

RECORDED = ("world_size", "global_batch_size", "lr", "samples_per_second", "train_time", "wall_time")  # columns of results.csv


def queue() -> Any:
    """Return the module of jobs that go on without the sweep's process: it has show_state(sweep_jobs) and cancel(sweep_jobs)."""
    return get_object("lockstep.slurm.launcher")


def look_at(directory: Path) -> SweepJobs:
    """Read a sweep that any process may run. Raise ConfigError if the directory is not a sweep's."""
    sweep_jobs = SweepJobs(directory)
    if not sweep_jobs.jobs and not sweep_jobs.is_running:
        raise config_error("SWEEP_DIR", directory, "names no jobs; use the directory of a sweep")
    if sweep_jobs.in_queue():
        queue().show_state(sweep_jobs)
    return sweep_jobs


def print_table(sweep_jobs: SweepJobs) -> None:
    """Print the jobs, the best first; the means over seeds and folds; the reasons of failed jobs, and a summary."""
    if jobs := sweep_jobs.ranked:
        metrics = {job.optimized_metric for job in jobs}
        heading = metrics.pop() if len(metrics) == 1 else "metric"
        console.show_table([_cells(job) for job in jobs], ("job", "overrides", "state", heading))
    if means := mean_rows(sweep_jobs):
        console.show_table([[*row.values()] for row in means], [*means[0]])
    for job in jobs:
        if job.reason and job.status != FINISHED:
            print(f"job {job.number} {job.status}: {shorten(job.reason)}")
    counts = sweep_jobs.counts
    others = [f", {count} {status}" for status, count in sorted(counts.items()) if status != FINISHED]
    print(f"{counts[FINISHED]} of {len(jobs)} job{'s' * (len(jobs) != 1)} finished{''.join(others)}", flush=True)


def _cells(job: Job) -> list[str]:
    metric = job.metric
    if metric is None:
        metric = read_progress(job.directory).get("metrics", {}).get(job.optimized_metric)
    pairs = (item.partition("=") for item in job.swept)
    label = " ".join(f"{key.lstrip('+').rpartition('.')[2]}={value}" for key, _, value in pairs)
    return [str(job.number), label, job.status, "" if metric is None else f"{metric:.5g}"]


def mean_rows(sweep_jobs: SweepJobs) -> list[dict[str, str]]:
    """Return mean and standard deviation of the metric over seeds or folds, if there are several: the best mean first."""
    groups: dict[str, list[Job]] = {}
    for job in sweep_jobs.ranked:
        if job.metric is not None:
            groups.setdefault(repetition(read_computed_config(job.directory)), []).append(job)
    if all(len(group) < 2 for group in groups.values()):
        return []
    return [_mean_row(group) for group in sorted(groups.values(), key=_mean_rank)]


def _mean_rank(group: list[Job]) -> tuple[str, float]:
    mean = statistics.mean(job.metric or 0.0 for job in group)
    return group[0].optimized_metric, -mean if group[0].optimized_mode == "max" else mean


def _mean_row(group: list[Job]) -> dict[str, str]:
    metrics = [job.metric or 0.0 for job in group]
    return {
        "overrides": " ".join(item for item in group[0].swept if item.partition("=")[0] not in REPEATS),
        "jobs": str(len(group)),
        "metric": group[0].optimized_metric,
        "mean": f"{statistics.mean(metrics):.5g}",
        "std": f"{statistics.stdev(metrics):.3g}" if len(metrics) > 1 else "",
    }


def shorten(reason: str) -> str:
    """Return the first clause of a long reason; the whole is in the job's log and its status.json."""
    return reason if len(reason) <= 60 else textwrap.shorten(re.split(r"[,;]\s", reason)[0], 80, placeholder=" ...")


def write_results(sweep_jobs: SweepJobs) -> None:
    """Write results.csv, a row for each job."""
    results = [_result(job) for job in sweep_jobs.ranked]
    rows = io.StringIO()
    writer = csv.DictWriter(rows, [*dict.fromkeys(itertools.chain(*results))], lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    replace_text(sweep_jobs.directory / "results.csv", rows.getvalue())


def _result(job: Job) -> dict[str, Any]:
    record = job.record
    result: dict[str, Any] = {"key": job.key, "directory": job.directory.name, "status": job.status}
    result |= {key: value for key, _, value in (item.partition("=") for item in job.swept)} | {"metric": job.metric}
    result |= {name: record.get(name) for name in RECORDED}
    result |= {name: value for name, value in record.get("metrics", {}).items() if name not in result}  # lr, say
    return result | {"reason": job.reason and shorten(job.reason)}
