"""What a sweep has measured: one row per job, also for jobs that have not finished."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.config.overrides import flat
from lockstep.config.plan import rate_key
from lockstep.errors import config_error
from lockstep.runs.saved import read_overrides
from lockstep.sweeps.jobs import FAILED, FINISHED, OUTSIDE, REPEATS, read_computed_config
from lockstep.sweeps.sweep_jobs import JobView
from lockstep.sweeps.table import look_at

STEP = "seconds_per_step"  # of a record
DIVERGED, MISSING = "diverged", "missing"
# Keys for which a row has a field, beside that of the rate; jobs that differ in any other key are not compared with each other.
_AXES = {"trainer.devices", "trainer.num_nodes", "trainer.accumulate_grad_batches"}
_AXES |= {"datamodule.batch_size", "datamodule.global_batch_size", *REPEATS}
_NOT_FINITE = re.compile(r"\b(nan|inf|infinite|not finite|diverged)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Measurement:
    """One job.

    status: finished, failed, diverged (failed by a number that was not finite) or missing (waiting, running, interrupted).
    devices: over all nodes; global_batch: samples of an optimizer step, over all devices; lr: as it was configured.
    seconds: of the whole job.
    variant: the values of other keys in which the sweep's jobs differ, and those that `changed` when the job was continued.
    config: the job's composed config, by dotted keys; record: its metrics.json.
    axes: the keys of the config for which there is a field.
    """

    job: str
    status: str
    devices: int
    reason: str | None
    lr: float | None
    seed: Any
    global_batch: int | None
    seconds: float | None
    metric: float | None
    variant: tuple[str, ...]
    changed: tuple[str, ...]
    overrides: tuple[str, ...]
    config: dict[str, Any] = field(compare=False)
    record: dict[str, Any] = field(compare=False)
    axes: set[str] = field(compare=False)

    @property
    def is_finished(self) -> bool:
        return self.status == FINISHED

    @property
    def point(self) -> tuple[int, int | None]:
        """Returns by what jobs of one group are compared: the devices and the global batch."""
        return self.devices, self.global_batch

    @property
    def step_seconds(self) -> float | None:
        """Returns the time of an optimizer step; where no job has recorded it, with that of validation and checkpoints in it."""
        rate = self.record.get("samples_per_second")
        return self.record.get(STEP) or (self.global_batch / rate if rate and self.global_batch else None)

    @property
    def samples_per_second(self) -> float | None:
        """Returns the sum over all devices."""
        return self.global_batch / self.step_seconds if self.global_batch and self.step_seconds else None

    @property
    def device_hours(self) -> float | None:
        return None if self.seconds is None else self.seconds * self.devices / 3600

    @property
    def batch_per_device(self) -> float | None:
        return None if self.global_batch is None else self.global_batch / self.devices


@dataclass(frozen=True)
class Measurements:
    """The rows of a sweep's largest variant, in the order of devices, rate and seed.

    left_out: the number of jobs of each other variant; total: of all jobs of the sweep.
    """

    directory: Path
    rows: tuple[Measurement, ...]
    metric: str
    maximize: bool
    left_out: dict[tuple[str, ...], int]
    total: int

    @property
    def finished(self) -> list[Measurement]:
        return [row for row in self.rows if row.is_finished]

    @property
    def variant(self) -> tuple[str, ...]:
        return self.rows[0].variant


def read(sweep_dir: Path, only: Sequence[str] = ()) -> Measurements:
    """Reads the jobs that have the overrides `only` (KEY=VALUE); if several variants are left, the one with the most finished
    jobs. Raises ConfigError if there is none."""
    every = look_at(sweep_dir).ranked
    jobs = [job for job in every if {*only} <= {item.lstrip("+") for item in job.overrides}]
    if not jobs:
        raise config_error("--only", " ".join(only), "no job has these; accepted are overrides of the sweep's jobs")
    rows = [_row(job) for job in jobs]
    groups = [_group(row) for row in rows]
    finished = Counter(group for group, row in zip(groups, rows, strict=True) if row.is_finished)
    largest = max(groups, key=lambda group: (finished[group], groups.count(group)))
    kept = sorted((row for group, row in zip(groups, rows, strict=True) if group == largest), key=_place)
    first = jobs[groups.index(largest)]
    _time_alike([row for row in kept if row.is_finished])
    return Measurements(
        directory=sweep_dir.absolute(),
        rows=tuple(kept),
        metric=first.optimized_metric,
        maximize=first.optimized_mode == "max",
        left_out=Counter(row.variant for group, row in zip(groups, rows, strict=True) if group != largest),
        total=len(every),
    )


def _time_alike(rows: Sequence[Measurement]) -> None:
    """Times of steps and of whole trainings are not compared: where each count has a job that recorded its steps', the others,
    which were resumed near their end say, have no time; else no job has that of its steps."""
    is_of_steps = {row.point for row in rows} == {row.point for row in rows if row.record.get(STEP)}
    for row in rows:
        if is_of_steps and not row.record.get(STEP):
            row.record.pop("samples_per_second", None)
        elif not is_of_steps:
            row.record.pop(STEP, None)


def _group(row: Measurement) -> str:
    """Jobs of one group differ in the axes only. A config file that was edited between two jobs makes two groups."""
    return json.dumps([row.changed, {key: value for key, value in row.config.items() if key not in row.axes}], sort_keys=True)


def _row(job: JobView) -> Measurement:
    composed, record = read_computed_config(job.directory), dict(job.record)
    config, rate = flat(composed), f"model.{rate_key(composed.get('model') or {}) or 'optimizer.lr'}"
    lr, axes = config.get(rate, record.get("lr")), {*_AXES, rate}
    swept = {key: value for key, _, value in (item.lstrip("+").partition("=") for item in job.swept)}
    resumed_with = (item for item in read_overrides(job.directory) if item not in job.overrides)  # by train.py resume=DIRECTORY
    changed = tuple(item for item in resumed_with if not item.startswith(OUTSIDE))
    return Measurement(
        job=job.directory.name,
        status=_status(job),
        reason=job.reason if record else job.reason or job.status,
        devices=job.world_size,
        lr=float(lr) if isinstance(lr, int | float) else None,  # an interpolation is no number
        seed=config.get("seed", record.get("seed")),
        global_batch=record.get("global_batch_size") or _configured_batch(config, job.world_size),
        seconds=record.get("wall_time") or job.seconds,
        metric=job.metric,
        variant=(*(f"{name}={value}" for name, value in sorted(swept.items()) if name not in axes), *changed),
        changed=changed,
        overrides=tuple(job.overrides),
        config=config,
        record=record,
        axes=axes,
    )


def _status(job: JobView) -> str:
    if job.status == FAILED:
        return DIVERGED if _NOT_FINITE.search(job.reason or "") else FAILED
    return FINISHED if job.status == FINISHED else MISSING


def _configured_batch(config: dict[str, Any], devices: int) -> int | None:
    """Returns the global batch of a job that has left no record."""
    if isinstance(given := config.get("datamodule.global_batch_size"), int):
        return given
    batch, accumulated = config.get("datamodule.batch_size"), config.get("trainer.accumulate_grad_batches", 1)
    return devices * batch * accumulated if isinstance(batch, int) and isinstance(accumulated, int) else None


def distinct(rows: Iterable[Measurement], name: str) -> list[Any]:
    """Returns what the jobs have recorded under this name, each value once."""
    return [value for value in dict.fromkeys(row.record.get(name) for row in rows) if value is not None]


def _place(row: Measurement) -> tuple[Any, ...]:
    return row.devices, row.global_batch or 0, row.lr is None, row.lr or 0.0, str(row.seed)
