"""How throughput, time and the final metric change with the number of devices."""

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.extras.report.estimates import Estimate, difference, estimate, ratio
from lockstep.extras.report.measurements import DIVERGED, Measurement, Measurements

WEAK, STRONG, MIXED, SINGLE = "weak", "strong", "mixed", "single"
SAME = 0.01  # the part of the metric that a change has to have to matter
EQUAL, CHANCE, SMALL, BETTER, WORSE = "equal", "not beyond chance", "less than 1%", "better", "worse"
KEPT = {WEAK: "batch_per_device", STRONG: "global_batch"}  # the attribute of a job that is the same over a series


@dataclass(frozen=True)
class Point:
    """The finished jobs of one number of devices and one global batch.

    throughput: samples per second over all devices; speedup: of throughput, over the series' fewest devices; efficiency: the
    speed-up over the ideal one; hours: device-hours of a job; lr: the best rate; metric: at that rate, over its repeats.
    """

    devices: int
    global_batch: int
    rows: tuple[Measurement, ...]
    throughput: Estimate
    speedup: Estimate
    efficiency: Estimate
    step_seconds: Estimate
    hours: Estimate
    lr: float | None
    metric: Estimate

    @property
    def at_best_rate(self) -> list[Measurement]:
        return [row for row in self.rows if row.lr == self.lr]


@dataclass(frozen=True)
class Series:
    """Points that differ in devices only: at one batch per device (weak scaling) or at one global batch (strong scaling).

    batch: samples per device or of the global batch; None if neither is kept (mixed).
    """

    kind: str
    batch: int | None
    points: tuple[Point, ...]

    @property
    def base(self) -> Point:
        return self.points[0]

    @property
    def name(self) -> str:
        words = {WEAK: "weak scaling, {} samples per device", STRONG: "strong scaling, {} samples in every global batch"}
        words |= {SINGLE: "one number of devices", MIXED: "neither batch was kept"}
        return words[self.kind].format(self.batch)


def find_series(measured: Measurements) -> list[Series]:
    """Returns every series of two counts or more, the one of the most jobs first. Without any it returns one that is mixed or of
    a single count, and nothing if no job has finished with a throughput."""
    timed = {row.point for row in measured.finished if row.samples_per_second}
    rows = [row for row in measured.finished if row.point in timed and row.metric is not None]
    series = [
        _series(kind, int(size), points, measured)
        for kind, batch in KEPT.items()
        for size, same in grouped(rows, batch).items()
        if len(points := [*grouped(same, "devices").values()]) > 1
    ]
    if series:
        return sorted(series, key=lambda one: -sum(len(point.rows) for point in one.points))
    largest = [max(grouped(same, "global_batch").values(), key=len) for same in grouped(rows, "devices").values()]
    return [_series(SINGLE if len(largest) == 1 else MIXED, None, largest, measured)] if largest else []


def _series(kind: str, batch: int | None, groups: Sequence[list[Measurement]], measured: Measurements) -> Series:
    return Series(kind, batch, tuple(_point(rows, groups[0], measured) for rows in groups))


def _point(rows: list[Measurement], base: list[Measurement], measured: Measurements) -> Point:
    devices = rows[0].devices
    speeds, speeds_of_base = ([row.samples_per_second for row in some if row.samples_per_second] for some in (rows, base))
    speedup = ratio(speeds, speeds_of_base) if rows is not base else Estimate(1.0)
    rates = {lr: estimate(final_metrics(same)) for lr, same in grouped(rows, "lr").items()}
    same = [row for row in measured.rows if row.point == rows[0].point]
    diverged = {row.lr for row in same if row.status == DIVERGED}  # its repeats that have finished are the lucky ones
    steady = [lr for lr in rates if lr not in diverged] or [*rates]
    best = (max if measured.maximize else min)(steady, key=lambda lr: rates[lr].mean)
    return Point(
        devices=devices,
        global_batch=rows[0].global_batch or 0,
        rows=tuple(rows),
        throughput=estimate(speeds, low=0.0),
        speedup=speedup,
        efficiency=speedup.scaled(base[0].devices / devices),
        step_seconds=estimate([row.step_seconds for row in rows if row.step_seconds], low=0.0),
        hours=estimate([row.device_hours or 0.0 for row in rows], low=0.0),
        lr=best,
        metric=rates[best],
    )


def final_metrics(rows: Iterable[Measurement]) -> list[float]:
    return [row.metric for row in rows if row.metric is not None]


@dataclass(frozen=True)
class Change:
    """The change of the final metric from the fewest devices to others, and whether it is more than chance and enough to matter:
    what the answer and the table say of it."""

    amount: Estimate
    verdict: str

    @property
    def lost(self) -> float:
        """How much worse the metric is; 0 if it is not."""
        return abs(self.amount.mean) if self.verdict == WORSE else 0.0

    @property
    def summary(self) -> str:
        is_repeated = self.amount.interval is not None or self.verdict == EQUAL
        return f"{self.verdict}{'' if is_repeated else ', from one run'}: {self.amount:+.2g}"


def metric_change(point: Point, series: Series, maximize: bool) -> Change:
    """Compares jobs of one rate and seed, which at one global batch differ in devices only; otherwise each count's best rate."""
    base = series.base
    pairs = _paired_changes(point, base) if series.kind == STRONG else []
    amount = estimate(pairs) if pairs else difference(final_metrics(point.at_best_rate), final_metrics(base.at_best_rate))
    return Change(amount, _verdict(amount, abs(base.metric.mean), maximize))


def _verdict(amount: Estimate, size: float, maximize: bool) -> str:
    low, high = amount.bounds
    if low == high == 0:
        return EQUAL
    if amount.interval is not None and low <= 0 <= high:
        return CHANCE
    if abs(amount.mean) <= SAME * size:
        return SMALL
    return BETTER if (amount.mean > 0) == maximize else WORSE


def _paired_changes(point: Point, base: Point) -> list[float]:
    known = {(row.lr, str(row.seed)): row.metric for row in base.rows}
    pairs = [(row.metric, known.get((row.lr, str(row.seed)))) for row in point.rows]
    return [metric - before for metric, before in pairs if metric is not None and before is not None]


def grouped(rows: Iterable[Measurement], *names: str) -> dict[Any, list[Measurement]]:
    """Groups rows by the values of these attributes, in their order; None comes last."""
    key = operator.attrgetter(*names)
    ordered = sorted(rows, key=lambda row: (key(row) is None, key(row) or 0))
    return {value: [*same] for value, same in itertools.groupby(ordered, key)}
