"""Which learning rate is best at each number of devices, and by which rule it changes with the batch."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy

from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.measurements import DIVERGED, FAILED, FINISHED, MISSING, Measurement, Measurements
from lockstep.extras.report.series import KEPT, Series, final_metrics, grouped

EXPONENTS = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}  # of the global batch (Krizhevsky 2014; Goyal et al. 2017)

# The least that a range of colours spans: standard deviations of repeats; without repeats, a part of the metric.
_DEVIATIONS, _UNREPEATED = 8.0, 0.1


@dataclass(frozen=True)
class Cell:
    """The jobs of one count and one rate: the `status` of the best of them, and the metrics of those that have finished."""

    status: str
    unfinished: int
    metrics: tuple[float, ...] = ()

    @property
    def metric(self) -> float | None:
        return statistics.fmean(self.metrics) if self.metrics else None


def rate_grid(series: Series | None, measured: Measurements) -> dict[tuple[int, float], Cell]:
    """Returns a cell for each number of devices and rate that was asked for, of the jobs that belong to the series, whether they
    have finished or not."""
    kept = KEPT.get(series.kind) if series else None
    rows = [row for row in measured.rows if kept is None or (series and getattr(row, kept) == series.batch)]
    known = [row for row in rows if row.lr is not None]
    return {place: _cell(same) for place, same in grouped(known, "devices", "lr").items()}


def _cell(rows: Sequence[Measurement]) -> Cell:
    metrics = tuple(final_metrics(row for row in rows if row.is_finished))
    status = min((row.status for row in rows), key=(FINISHED, DIVERGED, FAILED, MISSING).index)
    return Cell(status, len(rows) - len(metrics), metrics)


def color_range(cells: Iterable[Cell]) -> tuple[float, float]:
    """Returns the values at the ends of the colour map: the least and the largest mean, or further apart if repeats differ that
    much, or if there are none and the means differ by less than a tenth, so that chance does not look like a result."""
    groups = [cell.metrics for cell in cells if cell.metrics]
    if not groups:
        return 0.0, 1.0
    means = [statistics.fmean(group) for group in groups]
    middle, size = (min(means) + max(means)) / 2, max(means) - min(means)
    repeated = [group for group in groups if len(group) > 1]
    if repeated:
        variance = numpy.average(
            [statistics.variance(group) for group in repeated], weights=[len(group) - 1 for group in repeated]
        )
        least = _DEVIATIONS * math.sqrt(variance)
    else:
        least = _UNREPEATED * abs(middle)
    half = max(size, least) / 2
    return middle - half, middle + half


@dataclass(frozen=True)
class ScalingRule:
    """By which power of the global batch the best rate grows, and how likely each rule is against the others.

    edges: the counts whose best rate is the smallest or largest that was tried: the true one may lie beyond.
    """

    exponent: Estimate
    likelihood: dict[str, float]
    edges: tuple[int, ...]

    @property
    def name(self) -> str:
        return max(self.likelihood, key=lambda rule: self.likelihood[rule])


def fit_rule(series: Series, maximize: bool) -> ScalingRule | None:
    """Fits a line to log rate over log batch. Each count's best rate is as uncertain as the grid is coarse (a uniform error of
    one spacing) and as its repeats disagree. Returns None with fewer than two batches or two rates."""
    points = [(point, sorted({row.lr for row in point.rows if row.lr})) for point in series.points]
    points = [(point, rates) for point, rates in points if len(rates) > 1]
    if len({point.global_batch for point, _ in points}) < 2:
        return None
    batches = numpy.log([point.global_batch for point, _ in points])
    best = [_best_log_rate(point.rows, rates, maximize) for point, rates in points]
    rates, weights = numpy.array([mean for mean, _ in best]), numpy.array([1 / variance for _, variance in best])
    (slope, _), covariance = numpy.polyfit(batches, rates, 1, w=numpy.sqrt(weights), cov="unscaled")
    half = 1.96 * math.sqrt(covariance[0, 0])
    misfits = {name: _misfit(rates - power * batches, weights) for name, power in EXPONENTS.items()}
    odds = {name: math.exp((min(misfits.values()) - misfit) / 2) for name, misfit in misfits.items()}
    return ScalingRule(
        exponent=Estimate(float(slope), (float(slope) - half, float(slope) + half), len(points)),
        likelihood={name: one / sum(odds.values()) for name, one in odds.items()},
        edges=tuple(point.devices for point, tried in points if point.lr in (tried[0], tried[-1])),
    )


def _misfit(residuals: numpy.ndarray, weights: numpy.ndarray) -> float:
    """Sums the weighted squares of residuals from their weighted mean."""
    return float(weights @ (residuals - numpy.average(residuals, weights=weights)) ** 2)


def _best_log_rate(rows: Sequence[Measurement], tried: Sequence[float], maximize: bool) -> tuple[float, float]:
    """Returns mean and variance over the repeats of the rate that was in effect, lr_scaling included."""
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
