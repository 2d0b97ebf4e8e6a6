"""Means over repeats, and how sure they are."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# The 97.5% quantile of Student's t for 1, 2, ... degrees of freedom; beyond 30 the last one is a little too wide.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110)
_T += (2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95% confidence interval, which is None if nothing was repeated."""

    mean: float
    interval: tuple[float, float] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, or the mean twice if there is none."""
        return self.interval or (self.mean, self.mean)

    def scaled(self, factor: float) -> "Estimate":
        """Multiplies by a positive number that is known exactly."""
        bounds = self.interval and (self.interval[0] * factor, self.interval[1] * factor)
        return Estimate(self.mean * factor, bounds)

    def __format__(self, spec: str) -> str:
        """Formats the mean, and the interval in brackets if there is one that can be seen."""
        mean, low, high = (format(number, spec) for number in (self.mean, *self.bounds))
        return mean if low == mean == high else f"{mean} [{low} to {high}]"


def estimate(values: Sequence[float], low: float = -math.inf) -> Estimate:
    """Returns the mean with Student's t interval, which is cut off at `low`."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean)
    half = _quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, (max(low, mean - half), mean + half))


def difference(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Subtracts two means; the interval is Welch's and exists if both were repeated."""
    mean = statistics.fmean(values) - statistics.fmean(others)
    if min(len(values), len(others)) < 2:
        return Estimate(mean)
    parts = [(statistics.variance(some) / len(some), len(some) - 1) for some in (values, others)]
    if not (variance := sum(part for part, _ in parts)):
        return Estimate(mean, (mean, mean))
    half = _quantile(variance**2 / sum(part**2 / freedom for part, freedom in parts)) * math.sqrt(variance)
    return Estimate(mean, (mean - half, mean + half))


def ratio(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Divides two means of positive numbers, by the difference of their logarithms."""
    logs = difference([math.log(value) for value in values], [math.log(value) for value in others])
    bounds = logs.interval and (math.exp(logs.interval[0]), math.exp(logs.interval[1]))
    return Estimate(math.exp(logs.mean), bounds)


def _quantile(freedom: float) -> float:
    """Round the degrees of freedom down, as one does by a table."""
    return _T[min(int(freedom + 1e-9), len(_T)) - 1]
