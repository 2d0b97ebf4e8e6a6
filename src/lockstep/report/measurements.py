"""Measurements of a sweep: one row per job, also for jobs that have not finished."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.config.overrides import flat
from lockstep.config.plan import rate_key
from lockstep.errors import config_error
from lockstep.sweeps.jobs import FAILED, FINISHED, REPEATS, Job, read_computed_config
from lockstep.sweeps.table import look_at

DIVERGED, MISSING = "diverged", "missing"
# Keys for which a row has a field, beside that of the rate; jobs that differ in any other key are not compared with each other.
_AXES = {"trainer.devices", "trainer.num_nodes", "trainer.accumulate_grad_batches"}
_AXES |= {"datamodule.batch_size", "datamodule.global_batch_size", *REPEATS}
_NOT_FINITE = re.compile(r"\b(nan|inf|infinite|not finite|diverged)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Measurement:
    """One job.

    status: finished, failed, diverged (failed by a number that was not finite) or missing (queued, running, preempted).
    devices, global_batch: over all nodes; lr: as configured; config: by dotted keys; record: metrics.json.
    variant: the values of other keys in which the sweep's jobs differ; jobs of another one are not compared.
    """

    job: str
    status: str
    devices: int
    reason: str | None
    lr: float | None
    seed: Any
    global_batch: int | None
    metric: float | None
    variant: tuple[str, ...]
    overrides: tuple[str, ...]
    config: dict[str, Any] = field(compare=False)
    record: dict[str, Any] = field(compare=False)

    @property
    def samples_per_second(self) -> float | None:
        """Over all devices, in the whole training with validation and checkpoints: what the terminal shows, too."""
        return self.record.get("samples_per_second")

    @property
    def batch_per_device(self) -> float | None:
        return None if self.global_batch is None else self.global_batch / self.devices


@dataclass(frozen=True)
class Measurements:
    """The rows of a sweep's largest variant; the number of jobs of each other variant, and of all jobs of the sweep."""

    directory: Path
    rows: list[Measurement]
    metric: str
    maximize: bool
    left_out: dict[tuple[str, ...], int]
    total: int

    @property
    def finished(self) -> list[Measurement]:
        return [row for row in self.rows if row.status == FINISHED]


def read(sweep_dir: Path, only: Sequence[str] = ()) -> Measurements:
    """Read the jobs that have the overrides `only` (KEY=VALUE), or raise ConfigError; of several variants the one with the most
    finished jobs."""
    every = look_at(sweep_dir).ranked
    jobs = [job for job in every if {*only} <= {item.lstrip("+") for item in job.overrides}]
    if not jobs:
        raise config_error("--only", " ".join(only), "no job has these; use overrides of the sweep's jobs")
    rows = [_row(job) for job in jobs]
    sizes, finished = Counter(row.variant for row in rows), Counter(row.variant for row in rows if row.status == FINISHED)
    largest = max(rows, key=lambda row: (finished[row.variant], sizes[row.variant])).variant
    first = next(job for job, row in zip(jobs, rows, strict=True) if row.variant == largest)
    return Measurements(
        directory=sweep_dir.absolute(),
        rows=sorted((row for row in rows if row.variant == largest), key=lambda row: (row.devices, row.lr or 0.0, str(row.seed))),
        metric=first.optimized_metric,
        maximize=first.optimized_mode == "max",
        left_out=Counter(row.variant for row in rows if row.variant != largest),
        total=len(every),
    )


def _row(job: Job) -> Measurement:
    composed, record = read_computed_config(job.directory), dict(job.record)
    config, rate = flat(composed), f"model.{rate_key(composed.get('model') or {}) or 'optimizer.lr'}"
    lr, axes = config.get(rate, record.get("lr")), {*_AXES, rate}
    swept = sorted(item.lstrip("+") for item in job.swept)
    diverged = job.status == FAILED and _NOT_FINITE.search(job.reason or "")
    return Measurement(
        job=job.directory.name,
        status=DIVERGED if diverged else job.status if job.status in (FINISHED, FAILED) else MISSING,
        reason=job.reason or (None if record else job.status),
        devices=record.get("world_size", job.world_size),
        lr=float(lr) if isinstance(lr, int | float) else None,  # an interpolation is no number
        seed=config.get("seed", record.get("seed")),
        global_batch=record.get("global_batch_size") or config.get("datamodule.global_batch_size"),
        metric=job.metric,
        variant=tuple(item for item in swept if item.partition("=")[0] not in axes),
        overrides=tuple(job.overrides),
        config=config,
        record=record,
    )
