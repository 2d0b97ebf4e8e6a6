"""Means over repeats, and how sure they are."""

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95


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
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, (float(max(low, mean - half)), float(mean + half)))


def difference(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Subtracts two means; the interval is Welch's and exists if both were repeated."""
    mean = statistics.fmean(values) - statistics.fmean(others)
    if min(len(values), len(others)) < 2:
        return Estimate(mean)
    if len({*values}) == len({*others}) == 1:
        return Estimate(mean, (mean, mean))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # SciPy warns if the repeats of one side are equal
        low, high = stats.ttest_ind(values, others, equal_var=False).confidence_interval(CONFIDENCE)
    return Estimate(mean, (float(low), float(high)))


def ratio(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Divides two means of positive numbers, by the difference of their logarithms."""
    logs = difference([math.log(value) for value in values], [math.log(value) for value in others])
    bounds = logs.interval and (math.exp(logs.interval[0]), math.exp(logs.interval[1]))
    return Estimate(math.exp(logs.mean), bounds)
