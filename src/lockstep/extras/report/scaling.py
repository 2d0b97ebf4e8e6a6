"""How throughput, time and the final metric move with the number of devices."""

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.extras.report.estimates import Estimate, difference, estimate, positive, ratio, score
from lockstep.extras.report.measurements import Measurement, Measurements
from lockstep.extras.report.prediction import Setting

WEAK, STRONG, MIXED, SINGLE = "weak", "strong", "mixed", "single"
SAME = 0.01  # the part of the metric that a change has to have to matter
EQUAL, CHANCE, SMALL, BETTER, WORSE = "equal", "not beyond chance", "less than 1%", "better", "worse"
KEPT = {WEAK: "batch_per_device", STRONG: "global_batch"}  # of a job, over the counts of a series


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

    batch: samples per device or of the global batch; None where neither is kept (mixed).
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

    @property
    def setting(self) -> Setting:
        """How the batch goes with the number of devices."""
        size = self.batch or self.base.global_batch / self.base.devices
        return Setting(global_batch=size) if self.kind == STRONG else Setting(batch=size)


def series_of(measured: Measurements) -> list[Series]:
    """Every series of two counts or more, the one of the most jobs first; what there is, where there is none. Empty where
    nothing has finished with a throughput."""
    rows = [row for row in measured.finished if row.samples_per_second and row.metric is not None]
    found = [
        _series(kind, int(size), points, measured)
        for kind, batch in KEPT.items()
        for size, same in grouped(rows, batch).items()
        if len(points := [*grouped(same, "devices").values()]) > 1
    ]
    if found:
        return sorted(found, key=lambda one: -sum(len(point.rows) for point in one.points))
    largest = [max(grouped(same, "global_batch").values(), key=len) for same in grouped(rows, "devices").values()]
    return [_series(SINGLE if len(largest) == 1 else MIXED, None, largest, measured)] if largest else []


def _series(kind: str, batch: int | None, groups: Sequence[list[Measurement]], measured: Measurements) -> Series:
    return Series(kind, batch, tuple(_point(rows, groups[0], measured) for rows in groups))


def _point(rows: list[Measurement], base: list[Measurement], measured: Measurements) -> Point:
    devices = rows[0].devices
    speeds = [row.samples_per_second or 0.0 for row in rows]
    speedup = ratio(speeds, [row.samples_per_second or 0.0 for row in base]) if rows is not base else Estimate(1.0)
    rates = {lr: score(metrics_of(same), measured.maximize) for lr, same in grouped(rows, "lr").items()}
    best = (max if measured.maximize else min)(rates, key=lambda lr: rates[lr].mean)
    return Point(
        devices=devices,
        global_batch=rows[0].global_batch or 0,
        rows=tuple(rows),
        throughput=positive(speeds),
        speedup=speedup,
        efficiency=speedup.scaled(base[0].devices / devices),
        step_seconds=positive([row.step_seconds or 0.0 for row in rows]),
        hours=positive([row.device_hours or 0.0 for row in rows]),
        lr=best,
        metric=rates[best],
    )


def metrics_of(rows: Iterable[Measurement]) -> list[float]:
    return [row.metric for row in rows if row.metric is not None]


@dataclass(frozen=True)
class Change:
    """Of the final metric from the fewest devices to others, and whether it is more than chance and enough to matter: what the
    answer, the table and the picture say of it.

    pairs: jobs of one rate and seed that were compared; 0 where means at each one's best rate were.
    """

    devices: int
    amount: Estimate
    pairs: int
    verdict: str

    @property
    def lost(self) -> float:
        """What is lost of the metric, 0 where nothing is."""
        return abs(self.amount.mean) if self.verdict == WORSE else 0.0


def metric_change(point: Point, series: Series, maximize: bool) -> Change:
    """At one global batch between jobs of one rate and seed, which differ in devices only; otherwise at each one's best rate."""
    base = series.base
    pairs = paired_changes(point, base) if series.kind == STRONG else []
    amount = estimate(pairs) if pairs else difference(metrics_of(point.at_best_rate), metrics_of(base.at_best_rate))
    return Change(point.devices, amount, len(pairs), _verdict(amount, abs(base.metric.mean), maximize))


def _verdict(amount: Estimate, size: float, maximize: bool) -> str:
    low, high = amount.bounds
    if low == high == 0:
        return EQUAL
    if amount.interval is not None and low <= 0 <= high:
        return CHANCE
    if abs(amount.mean) <= SAME * size:
        return SMALL
    return BETTER if (amount.mean > 0) == maximize else WORSE


def paired_changes(point: Point, base: Point) -> list[float]:
    """Of the final metric, from each job of `base` to the one of the same rate and seed."""
    known = {(row.lr, str(row.seed)): row.metric for row in base.rows}
    pairs = [(row.metric, known.get((row.lr, str(row.seed)))) for row in point.rows]
    return [metric - before for metric, before in pairs if metric is not None and before is not None]


@dataclass(frozen=True)
class Arrival:
    """When the jobs of one count first had the target metric, at the rate that got there first; `devices` of them."""

    devices: int
    lr: float | None
    seconds: Estimate

    @property
    def hours(self) -> Estimate:
        """Device-hours."""
        return self.seconds.scaled(self.devices / 3600)


def common_target(series: Series, maximize: bool) -> float | None:
    """The best value that every repeat of every count's best rate has reached; None where epochs were not recorded."""
    histories = [[value for _, value in row.history] for point in series.points for row in point.at_best_rate]
    if not all(histories):
        return None
    return min(map(max, histories)) if maximize else max(map(min, histories))


def arrivals(series: Series, target: float, maximize: bool) -> dict[int, Arrival]:
    """By number of devices; without the counts that have no rate of which all repeats arrived."""
    found: dict[int, Arrival] = {}
    for point in series.points:
        for lr, rows in grouped(point.rows, "lr").items():
            times = [_first_time(row, target, maximize) for row in rows]
            reached = [time for time in times if time is not None]
            if len(reached) == len(times):
                arrival = Arrival(point.devices, lr, positive(reached))
                found[point.devices] = min(found.get(point.devices, arrival), arrival, key=lambda one: one.seconds.mean)
    return found


def _first_time(row: Measurement, target: float, maximize: bool) -> float | None:
    return next((time for time, value in row.history if (value >= target if maximize else value <= target)), None)


def grouped(rows: Iterable[Measurement], *names: str) -> dict[Any, list[Measurement]]:
    """By the values of these attributes, in their order; what has none comes last."""
    key = operator.attrgetter(*names)
    ordered = sorted(rows, key=lambda row: (key(row) is None, key(row) or 0))
    return {value: [*same] for value, same in itertools.groupby(ordered, key)}
