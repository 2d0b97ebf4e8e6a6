"""Means over repeats, and how sure they are."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """The mean of `runs` values and its 95% confidence interval (Student's t); None where nothing was repeated."""

    mean: float
    interval: tuple[float, float] | None = None
    runs: int = 1

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval; the mean twice, where there is none."""
        return self.interval or (self.mean, self.mean)

    def scaled(self, factor: float) -> "Estimate":
        """Times a positive number that is known exactly."""
        bounds = self.interval and (self.interval[0] * factor, self.interval[1] * factor)
        return Estimate(self.mean * factor, bounds, self.runs)


def positive(values: Sequence[float]) -> Estimate:
    """Of times, say: the interval does not go below 0."""
    return estimate(values, low=0.0)


def score(values: Sequence[float], maximize: bool) -> Estimate:
    """Of a metric. One to be maximised that is between 0 and 1 in all runs is taken for a share, an accuracy say: its interval
    does not go beyond them."""
    is_share = maximize and min(values) >= 0 and max(values) <= 1
    return estimate(values, 0.0, 1.0) if is_share else estimate(values)


def estimate(values: Sequence[float], low: float = -math.inf, high: float = math.inf) -> Estimate:
    """Of a quantity between `low` and `high`."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean)
    half = _half_width(statistics.stdev(values) / math.sqrt(len(values)), len(values) - 1)
    return Estimate(mean, (max(low, mean - half), min(high, mean + half)), len(values))


def difference(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Of two means; bounds by Welch's t, where both were repeated."""
    mean, runs = statistics.fmean(values) - statistics.fmean(others), min(len(values), len(others))
    if runs < 2:
        return Estimate(mean)
    parts = [(statistics.variance(group) / len(group), len(group)) for group in (values, others)]
    variance = sum(part for part, _ in parts)
    if variance == 0.0:
        return Estimate(mean, (mean, mean), runs)
    freedom = variance**2 / sum(part**2 / (count - 1) for part, count in parts)
    half = _half_width(math.sqrt(variance), freedom)
    return Estimate(mean, (mean - half, mean + half), runs)


def ratio(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Of two means of positive numbers, by the difference of their logarithms."""
    logs = difference([math.log(value) for value in values], [math.log(value) for value in others])
    bounds = logs.interval and (math.exp(logs.interval[0]), math.exp(logs.interval[1]))
    return Estimate(math.exp(logs.mean), bounds, logs.runs)


def _half_width(error: float, freedom: float) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
