"""Which learning rate is best at each number of devices, and by which rule it moves with the batch."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy

from lockstep.extras.report.estimates import Estimate, estimate
from lockstep.extras.report.measurements import DIVERGED, FAILED, FINISHED, MISSING, Measurement, Measurements
from lockstep.extras.report.scaling import KEPT, Series, grouped

RULES = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}  # exponents of the global batch (Krizhevsky 2014; Goyal et al. 2017)

# The least that a range of colours spans: standard deviations of repeats; without repeats, a part of the metric.
_DEVIATIONS, _UNREPEATED = 8.0, 0.1


@dataclass(frozen=True)
class Cell:
    """The jobs of one count and one rate, however they ended: `status` of the best of them, `metric` of the finished ones."""

    status: str
    metric: Estimate | None
    unfinished: int
    metrics: tuple[float, ...] = ()


def cells(rows: Iterable[Measurement]) -> dict[tuple[int, float], Cell]:
    """By number of devices and rate; what was never asked for is not in it."""
    known = [row for row in rows if row.lr is not None]
    return {place: _cell(same) for place, same in grouped(known, "devices", "lr").items()}


def _cell(rows: Sequence[Measurement]) -> Cell:
    metrics = [row.metric for row in rows if row.is_finished and row.metric is not None]
    status = min((row.status for row in rows), key=(FINISHED, DIVERGED, FAILED, MISSING).index)
    return Cell(status, estimate(metrics) if metrics else None, len(rows) - len(metrics), tuple(metrics))


def span_of(cells: Iterable[Cell]) -> tuple[float, float]:
    """The values that the ends of a range of colours stand for: the least and the largest mean, or further apart where repeats
    differ so much, or where there are none and the means by no more than a tenth, so that chance does not look like a result."""
    groups = [cell.metrics for cell in cells if cell.metrics]
    if not groups:
        return 0.0, 1.0
    means = [statistics.fmean(group) for group in groups]
    repeated = [group for group in groups if len(group) > 1]
    low, high = min(means), max(means)
    middle = (low + high) / 2
    if repeated:
        freedom = sum(len(group) - 1 for group in repeated)
        variance = sum((len(group) - 1) * statistics.variance(group) for group in repeated) / freedom
        least = _DEVIATIONS * math.sqrt(variance)
    else:
        least = _UNREPEATED * abs(middle)
    half = max(high - low, least) / 2
    return middle - half, middle + half


def rows_of(series: Series, measured: Measurements) -> list[Measurement]:
    """The jobs that belong to a series, those that have not finished too."""
    kept = KEPT.get(series.kind)
    return [row for row in measured.rows if kept is None or getattr(row, kept) == series.batch]


@dataclass(frozen=True)
class Rule:
    """By which power of the global batch the best rate grows, and how likely each rule is against the others.

    edges: the counts whose best rate is the smallest or largest that was tried: the true one may lie beyond.
    """

    exponent: Estimate
    likelihood: dict[str, float]
    edges: tuple[int, ...]

    @property
    def name(self) -> str:
        return max(self.likelihood, key=lambda rule: self.likelihood[rule])


def fitted_rule(series: Series, maximize: bool) -> Rule | None:
    """Least squares in log rate over log batch. Each count's best rate is as uncertain as the grid is coarse (a uniform error of
    one spacing) and as its repeats disagree. None with fewer than two batches or two rates."""
    points = [(point, sorted({row.lr for row in point.rows if row.lr})) for point in series.points]
    points = [(point, rates) for point, rates in points if len(rates) > 1]
    if len({point.global_batch for point, _ in points}) < 2:
        return None
    batches = numpy.log([point.global_batch for point, _ in points])
    found = [_best_log_rate(point.rows, rates, maximize) for point, rates in points]
    rates, weights = numpy.array([mean for mean, _ in found]), numpy.array([1 / variance for _, variance in found])
    batches, rates = (values - numpy.average(values, weights=weights) for values in (batches, rates))
    spread = float(weights @ batches**2)
    slope, half = float(weights @ (batches * rates)) / spread, 1.96 / math.sqrt(spread)
    misfits = {name: float(weights @ (rates - power * batches) ** 2) for name, power in RULES.items()}
    odds = {name: math.exp((min(misfits.values()) - misfit) / 2) for name, misfit in misfits.items()}
    return Rule(
        exponent=Estimate(slope, (slope - half, slope + half), len(points)),
        likelihood={name: one / sum(odds.values()) for name, one in odds.items()},
        edges=tuple(point.devices for point, tried in points if point.lr in (tried[0], tried[-1])),
    )


def _best_log_rate(rows: Sequence[Measurement], tried: Sequence[float], maximize: bool) -> tuple[float, float]:
    """Mean and variance over the repeats. The rate is the one that was in effect, lr_scaling included."""
    repeats: dict[str, list[Measurement]] = {}
    for row in rows:
        if row.lr:
            repeats.setdefault(str(row.seed), []).append(row)
    choose = max if maximize else min
    best = [choose(same, key=lambda row: row.metric or 0.0) for same in repeats.values()]
    logs = [math.log(row.record.get("lr") or row.lr or 1.0) for row in best]
    spacing = math.log(tried[-1] / tried[0]) / (len(tried) - 1)
    spread = statistics.variance(logs) / len(logs) if len(logs) > 1 else 0.0
    return statistics.fmean(logs), spacing**2 / 12 + spread
