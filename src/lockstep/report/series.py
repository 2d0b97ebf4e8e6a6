"""Speed and final metric by the number of devices: means over repeats, with their 95% confidence intervals."""

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

from scipy.special import stdtrit  # the quantile of Student's t

from lockstep.report.measurements import DIVERGED, Measurement, Measurements

SAME = 0.01  # the part of the metric that a change has to have to matter
EQUAL, CHANCE, SMALL, BETTER, WORSE = "equal", "not beyond chance", "less than 1%", "better", "worse"
WEAK, STRONG, MIXED = "weak", "strong", "mixed"
_SAME_BATCH = {WEAK: "batch_per_device", STRONG: "global_batch"}  # the attribute of a job that is the same over a series


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval, which is None if nothing was repeated."""

    mean: float
    interval: tuple[float, float] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, or the mean twice if there is none."""
        return self.interval or (self.mean, self.mean)

    def __format__(self, spec: str) -> str:
        """Format the mean, and the interval in brackets if there is one that can be seen."""
        mean, low, high = (format(number, spec) for number in (self.mean, *self.bounds))
        return mean if low == mean == high else f"{mean} [{low} to {high}]"


@dataclass(frozen=True)
class Change:
    """Change of the final metric from the fewest devices to others, and whether it is more than chance and enough to matter."""

    amount: Estimate
    verdict: str

    @property
    def lost(self) -> float:
        """Return how much worse the metric is; 0 if it is not."""
        return abs(self.amount.mean) if self.verdict == WORSE else 0.0

    def __str__(self) -> str:
        is_repeated = self.amount.interval is not None or self.verdict == EQUAL
        return f"{self.verdict}{'' if is_repeated else ', from one run'}: {self.amount:+.2g}"


@dataclass(frozen=True)
class Point:
    """The finished jobs of one number of devices and one global batch.

    speeds: samples per second of each job, over all devices; speedup: over the series' fewest devices; efficiency: the speed-up
    over the ideal one; rates: the final metric at each rate; lr: the best rate; change: of its metric, from the fewest devices.
    """

    devices: int
    global_batch: int
    rows: list[Measurement]
    speeds: list[float]
    speedup: Estimate
    efficiency: Estimate
    rates: dict[float | None, Estimate]
    lr: float | None
    change: Change

    @property
    def throughput(self) -> Estimate:
        """Samples per second: the mean over the jobs."""
        return geometric(self.speeds)

    @property
    def metric(self) -> Estimate:
        """The final metric at the best rate."""
        return self.rates[self.lr]


@dataclass(frozen=True)
class Series:
    """Points that differ in devices only, at one batch per device (weak scaling) or one global batch (strong scaling)."""

    kind: str
    batch: int | None
    points: list[Point]

    @property
    def base(self) -> Point:
        return self.points[0]


def find_series(measured: Measurements) -> Series:
    """Return the series of the most jobs over two counts or more. Without any it is mixed; it has a single point if there is one
    count, and none if no job has finished with a speed."""
    timed = {(row.devices, row.global_batch) for row in measured.finished if row.samples_per_second}
    rows = [row for row in measured.finished if (row.devices, row.global_batch) in timed and row.metric is not None]
    found = [
        (kind, int(size), points)
        for kind, batch in _SAME_BATCH.items()
        for size, same in grouped(rows, batch).items()
        if len(points := [*grouped(same, "devices").values()]) > 1
    ]
    if not found:
        largest = [max(grouped(same, "global_batch").values(), key=len) for same in grouped(rows, "devices").values()]
        found = [(MIXED, None, largest)]
    kind, size, points = max(found, key=lambda one: sum(map(len, one[2])))
    return Series(kind, size, [_point(rows, points[0], kind, measured) for rows in points])


def _point(rows: list[Measurement], base: list[Measurement], kind: str, measured: Measurements) -> Point:
    speeds, base_speeds = ([row.samples_per_second for row in some if row.samples_per_second] for some in (rows, base))
    per_device = [speed / rows[0].devices for speed in speeds], [speed / base[0].devices for speed in base_speeds]
    is_base, (lr, rates) = rows is base, _rates(rows, measured)
    return Point(
        devices=rows[0].devices,
        global_batch=rows[0].global_batch or 0,
        rows=rows,
        speeds=speeds,
        speedup=Estimate(1.0) if is_base else geometric(speeds, base_speeds),
        efficiency=Estimate(1.0) if is_base else geometric(*per_device),
        rates={lr: estimate(metrics) for lr, metrics in rates.items()},
        lr=lr,
        change=_change(rows, base, kind, measured),
    )


def _rates(rows: list[Measurement], measured: Measurements) -> tuple[float | None, dict[float | None, list[float]]]:
    """Return the rate of the best mean, of those at which no repeat has diverged if there are any; and the metrics of each."""
    rates = {lr: [row.metric for row in same if row.metric is not None] for lr, same in grouped(rows, "lr").items()}
    like = (rows[0].devices, rows[0].global_batch, DIVERGED)
    diverged = {row.lr for row in measured.rows if (row.devices, row.global_batch, row.status) == like}
    steady = [lr for lr in rates if lr not in diverged] or [*rates]
    return (max if measured.maximize else min)(steady, key=lambda lr: fmean(rates[lr])), rates


def _change(rows: list[Measurement], base: list[Measurement], kind: str, measured: Measurements) -> Change:
    """Compare jobs of one rate and seed, which at one global batch differ in devices only; otherwise each count's best rate."""
    known = {(row.lr, str(row.seed)): row.metric for row in base} if kind == STRONG else {}
    pairs = [(row.metric, known.get((row.lr, str(row.seed)))) for row in rows]
    changes = [metric - before for metric, before in pairs if metric is not None and before is not None]
    own, before = (rates[lr] for lr, rates in (_rates(some, measured) for some in (rows, base)))
    amount = estimate(changes) if changes else difference(own, before)
    low, high = amount.bounds
    if low == high == 0:
        return Change(amount, EQUAL)
    if amount.interval is not None and low <= 0 <= high:
        return Change(amount, CHANCE)
    if abs(amount.mean) <= SAME * abs(fmean(before)):
        return Change(amount, SMALL)
    return Change(amount, BETTER if (amount.mean > 0) == measured.maximize else WORSE)


def grouped(rows: Iterable[Measurement], name: str) -> dict[Any, list[Measurement]]:
    """Group rows by the values of an attribute, in their order; None comes last."""
    key = operator.attrgetter(name)
    ordered = sorted(rows, key=lambda row: (key(row) is None, key(row) or 0))
    return {value: [*same] for value, same in itertools.groupby(ordered, key)}


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean with Student's t interval."""
    mean, count = fmean(values), len(values)
    return _around(mean, variance(values) / count, count - 1) if count > 1 else Estimate(mean)


def difference(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Subtract two means; the interval is Welch's and exists if both were repeated."""
    mean = fmean(values) - fmean(others)
    if min(len(values), len(others)) < 2:
        return Estimate(mean)
    parts = [(variance(some) / len(some), len(some) - 1) for some in (values, others)]
    total = sum(part for part, _ in parts)
    return _around(mean, total, total**2 / sum(part**2 / freedom for part, freedom in parts) if total else 1)


def geometric(values: Sequence[float], others: Sequence[float] = ()) -> Estimate:
    """Return the geometric mean of positive numbers, divided by that of others if there are any."""
    logs = [[math.log(value) for value in some] for some in (values, others) if some]
    change = difference(*logs) if others else estimate(*logs)
    return Estimate(math.exp(change.mean), change.interval and (math.exp(change.interval[0]), math.exp(change.interval[1])))


def _around(mean: float, squared_error: float, freedom: float) -> Estimate:
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(squared_error)
    return Estimate(mean, (mean - half, mean + half))
