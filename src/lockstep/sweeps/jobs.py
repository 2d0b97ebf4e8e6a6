"""A job of a sweep: its identity, and how it stands by what is in its directory."""

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from lockstep.atomic_files import read_json
from lockstep.config.overrides import flat
from lockstep.errors import ExitCode
from lockstep.launchers.outcome import killed_by
from lockstep.runs.locks import is_held
from lockstep.runs.saved import FILE, read_yaml

REPEATS = ("seed", "datamodule.fold")  # keys over which results are averaged
OUTSIDE = ("datamodule.data_dir", "fresh_processes", "mirror")  # keys that do not change a result: the last command's count
OUTPUT = "output.log"  # what a job's processes have said
FINISHED, FAILED, INTERRUPTED, RUNNING, WAITING = "finished", "failed", "interrupted", "running", "waiting"
_LONGEST_NAME = 200  # bytes; file systems take 255


class JobState(NamedTuple):
    """A job's status, why it has it, and the metric of one that has finished."""

    status: str = RUNNING
    reason: str | None = None
    metric: float | None = None


def computed_config(cfg: Any) -> dict[str, Any]:
    """Return the composed config less what does not change a result: paths, how processes are started, and the run's copy."""
    content: Any = OmegaConf.to_container(cfg, resolve=False) if OmegaConf.is_config(cfg) else cfg
    for key in ("run_dir", "run_id", "forked_from", *OUTSIDE):
        above, _, name = key.rpartition(".")
        ((content.get(above) if above else content) or {}).pop(name, None)
    return json.loads(json.dumps(content, default=str))


def read_computed_config(directory: Path) -> dict[str, Any]:
    """Return the same of a job's directory, with the values that its run has begun with; empty if it has none."""
    return computed_config(read_yaml(directory / FILE) or {})


def identity(content: dict[str, Any]) -> str:
    """Return a hash of a job's `computed_config`."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def repetition(config: dict[str, Any]) -> str:
    """Return the identity less the keys that results are averaged over: jobs of one repetition compute the same quantity."""
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
    """Return progress.json, which says how far training is; empty if there is none."""
    return read_json(directory / "progress.json") or {}


def read_record(directory: Path) -> dict[str, Any] | None:
    """Return metrics.json, which a run writes last."""
    record = read_json(directory / "metrics.json") or {}
    return record if record.get("optimized_metric") in record.get("metrics", {}) else None


def read_status(directory: Path) -> tuple[str | None, str | None]:
    """Return the status and the reason that status.json says, each None where it does not."""
    content = read_json(directory / "status.json") or {}
    return content.get("status"), content.get("reason")


def read_state(directory: Path, died: str = "the sweep process died", is_sweep_running: bool = False) -> JobState:
    """Return the state of a job. The record is written last and decides; `died` is the reason of a job that was killed."""
    if (record := read_record(directory)) is not None:
        return state_from_record(directory, record)
    status, reason = read_status(directory)
    if status == "failed":
        return JobState(FAILED, reason)
    if status == "running" and (is_sweep_running or is_held(directory)):
        return JobState(RUNNING)
    if status in ("queued", None) or (is_sweep_running and status == "preempted"):  # which the sweep continues
        return JobState(WAITING)
    return JobState(INTERRUPTED, reason or died)


def state_after(directory: Path, end: int | JobState) -> JobState:
    """Return the state of a job whose attempt has ended with an exit code, negative for a signal, or in a state that its
    executor knows."""
    if (record := read_record(directory)) is not None:
        return state_from_record(directory, record)
    if isinstance(end, JobState):
        return end
    status, reason = read_status(directory)
    if end == ExitCode.PREEMPTED:
        return JobState(INTERRUPTED, reason)
    if end < 0:
        reason = killed_by(end)
    elif end == ExitCode.FINISHED:
        reason = "ended with code 0 and no record"
    elif status != "failed" or reason is None:
        lines = log.read_text(errors="replace").splitlines() if (log := directory / OUTPUT).is_file() else []
        reason = ": ".join([f"ended with code {end}", *lines[-1:]])
    return JobState(FAILED, " ".join(reason.split()))


def state_from_record(directory: Path, record: dict[str, Any]) -> JobState:
    """Return the state of a job that has written its record. Metrics that are not finite, in the record or in its last epoch, are
    a failure."""
    latest = read_progress(directory).get("metrics", {})
    if infinite := sorted({name for metrics in (latest, record["metrics"]) for name, value in metrics.items() if value is None}):
        return JobState(FAILED, f"{', '.join(infinite)} not finite")
    return JobState(FINISHED, record.get("ended_by"), record["metrics"][record["optimized_metric"]])
