"""Means over repeats, with their 95% confidence intervals."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit  # the quantile of Student's t


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


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean with Student's t interval."""
    mean, count = statistics.fmean(values), len(values)
    return _around(mean, statistics.variance(values) / count, count - 1) if count > 1 else Estimate(mean)


def difference(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Subtract two means; the interval is Welch's and exists if both were repeated."""
    mean = statistics.fmean(values) - statistics.fmean(others)
    if min(len(values), len(others)) < 2:
        return Estimate(mean)
    parts = [(statistics.variance(some) / len(some), len(some) - 1) for some in (values, others)]
    variance = sum(part for part, _ in parts)
    return _around(mean, variance, variance**2 / sum(part**2 / freedom for part, freedom in parts) if variance else 1)


def geometric(values: Sequence[float], others: Sequence[float] = ()) -> Estimate:
    """Return the geometric mean of positive numbers, divided by that of others if there are any."""
    logs = [[math.log(value) for value in some] for some in (values, others) if some]
    change = difference(*logs) if others else estimate(*logs)
    return Estimate(math.exp(change.mean), change.interval and (math.exp(change.interval[0]), math.exp(change.interval[1])))


def _around(mean: float, variance: float, freedom: float) -> Estimate:
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(variance)
    return Estimate(mean, (mean - half, mean + half))
