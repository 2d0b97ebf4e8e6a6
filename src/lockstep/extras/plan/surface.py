"""What every batch needs at every rate, by all branches at once.

What a branch needs is measured: the samples after which its loss, as the nearest curve that falls, is that of the smallest batch.
Another seed makes that a tenth more or less, as much as another rate or batch does: no branch decides alone. To the logarithms of
what they all need a quadratic in the logarithm of the rate is fitted (a response surface: Box and Wilson 1951, JRSS B 13). Its
height is each batch's own; its curvature is that of all; its lowest point moves with the batch by the optimizer's rule and a
power beside it; and a seed that needs more does so with every batch.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy
from scipy.optimize import isotonic_regression

from lockstep.extras.plan.branches import Array, Branch, Branches, running_median

_DRAWS = 100
_HEIGHT, _SLOPE, _DRIFT, _SEED = 10.0, 0.5, 0.15, 0.1  # deviations of what is not measured yet, by octaves of rate and batch
_CURVATURE, _OF_CURVATURE = 0.25, 0.15  # its mean and deviation: a rate of half of the best one needs a quarter more samples
_FLATTEST = 0.05
_NOISE, _CERTAINTY = 0.07, 4  # of a branch's logarithm; and how many measurements this is worth
_FAR = 1.0  # of what a rate needs more than the best one: the error of a quadratic there
_WAY_OFF = math.log(2)  # above the least that a batch has needed: nothing is learned from such a rate
_OWN = 0.7  # of the noise: how far a rate may be from the quadratic
_PASSES = 4  # of the fit, whose weights follow from the fit before
_LEAST_POINTS = 4
_SKIPPED = 0.2  # of a branch: the first steps of training are unlike the rest
_CLEAR = 3.0  # standard errors of the slope, by which a loss falls
_BEYOND = 1.5  # the most that the samples to a loss may be, over those of the branch


@dataclass(frozen=True)
class Surface:
    """needs: by batch and rate the logarithms of the samples to the same loss: the mean, and then draws of it."""

    needs: dict[tuple[int, float], Array] = field(default_factory=dict)

    def best_rates(self, multiple: int) -> list[float]:
        """Those that were tried and are no way off, the best one first."""
        needs = {rate: float(own[0]) for (other, rate), own in self.needs.items() if other == multiple}
        return sorted(needs, key=lambda rate: needs[rate])

    @property
    def worths(self) -> dict[int, Array]:
        """Of the samples of each batch, over those of the smallest, at their best rates. Empty where nothing can be said."""
        best = {m: self.needs[m, self.best_rates(m)[0]] for m in sorted({multiple for multiple, _ in self.needs})}
        return {m: numpy.exp(best[1] - needs) for m, needs in best.items()} if 1 in best else {}


def fitted_surface(known: Branches, start: int, seed: int = 0) -> Surface:
    """Of the longest branches at rates that have not diverged with any seed."""
    needed = _needed(known, start)
    if not needed:
        return Surface()
    branches, logs = [*needed], numpy.array([*needed.values()])
    multiples, repeats = (
        [*dict.fromkeys(values)] for values in zip(*((one.multiple, one.repeat) for one in branches), strict=True)
    )
    centre = known.best_rate(start, 1)

    def row(multiple: int, rate: float, repeat: int | None = None) -> list[float]:
        x = math.log2(rate / centre / known.factor(multiple))
        own = [float(multiple == other) for other in multiples], [float(repeat == other) for other in repeats]
        return [*own[0], *own[1], x, x * x, x * math.log2(multiple)]

    rows = numpy.array([row(one.multiple, one.rate, one.repeat) for one in branches])
    zeros = [0.0] * len(repeats)
    mean = numpy.array([*(float(logs.mean()) for _ in multiples), *zeros, 0.0, _CURVATURE, 0.0])
    deviations = [*(_HEIGHT for _ in multiples), *(_SEED for _ in repeats), _SLOPE, _OF_CURVATURE, _DRIFT]
    octaves = numpy.log2([one.multiple for one in branches])
    fit, covariance = _regression(rows, octaves, logs, mean, 1 / numpy.square(deviations))
    draws = numpy.random.default_rng(seed).multivariate_normal(fit, covariance, size=_DRAWS, method="cholesky")
    rest, needs = logs - rows @ fit, {}
    for pair in dict.fromkeys((one.multiple, one.rate) for one in branches):
        own = [value for value, one in zip(rest, branches, strict=True) if (one.multiple, one.rate) == pair]
        share = _OWN**2 / (_OWN**2 + 1 / len(own))
        needs[pair] = numpy.array([fit, *draws]) @ row(*pair) + share * float(numpy.mean(own))
    return Surface(needs)


def _regression(rows: Array, octaves: Array, logs: Array, mean: Array, precision: Array) -> tuple[Array, Any]:
    """Coefficients and their covariance, of which `mean` and `precision` are known before. The noise is that of the rest; far
    from the best rate of a batch the error of the quadratic comes on top."""
    noise, far, fit, covariance = _NOISE, numpy.zeros(len(logs)), mean, numpy.diag(1 / precision)
    for _ in range(_PASSES):
        weights = 1 / (noise**2 + (_FAR * far) ** 2)
        covariance = numpy.linalg.inv(numpy.diag(precision) + rows.T @ (weights[:, None] * rows))
        fit = covariance @ (precision * mean + rows.T @ (weights * logs))
        squares = noise**2 * float(numpy.sum(weights * (logs - rows @ fit) ** 2))
        free = len(logs) - float(numpy.trace(covariance @ rows.T @ (weights[:, None] * rows)))
        noise = math.sqrt((_CERTAINTY * _NOISE**2 + squares) / (_CERTAINTY + max(0.0, free)))
        slope, curvature, drift = fit[-3:]
        curvature = max(curvature, _FLATTEST)
        far = curvature * (rows[:, -3] + (slope + drift * octaves) / (2 * curvature)) ** 2
    return fit, covariance


def _needed(known: Branches, start: int) -> dict[Branch, float]:
    """The logarithms of the points of each branch to the same loss. Empty where the smallest batch's falls unclearly."""
    smallest = [logs for repeat in known.repeats(start) if (logs := known.best(start, repeat).get(1)) is not None]
    if not any(map(_falls, smallest)):
        return {}
    goal, needed = math.log(known.goal(start)), {}
    for multiple in known.multiples(start):
        rates = known.rates(start, multiple)
        own = {
            b: c
            for b, c in known.curves.items()
            if (b.start, b.multiple) == (start, multiple) and math.isfinite(rates.get(b.rate, math.inf))
        }
        longest = max(map(len, own.values()))
        logs = {b: _points_to(running_median(numpy.log(c)), goal) for b, c in own.items() if len(c) == longest}
        needed |= {branch: log for branch, log in logs.items() if log < min(logs.values()) + _WAY_OFF}
    return needed


def _falls(row: Array) -> bool:
    """Clearly, by the straight line through its points."""
    x = numpy.arange(len(row))[1 + int(_SKIPPED * len(row)) :]
    if len(row) < _LEAST_POINTS:
        return False
    (slope, _), covariance = numpy.polyfit(x, row[x], 1, cov=True)
    return bool(-slope > _CLEAR * math.sqrt(covariance[0, 0]))


def _points_to(logs: Array, goal: float) -> float:
    """The logarithm of the points at which the nearest curve that does not rise comes to the goal, between the middles of its
    level pieces; where it ends above, along the straight line that its second half has over the logarithm of the points."""
    curve = isotonic_regression(logs, increasing=False).x
    levels, piece = numpy.unique(-curve, return_inverse=True)
    middles = numpy.bincount(piece, numpy.arange(len(curve))) / numpy.bincount(piece)
    if -goal <= levels[-1]:
        return math.log(max(1e-9, float(numpy.interp(-goal, levels, middles))))
    end, half = len(curve) - 1, len(curve) // 2
    slope = min(-1e-9, numpy.polyfit(numpy.log(numpy.arange(half, end + 1)), curve[half:], 1)[0])
    return math.log(end) + min(math.log(_BEYOND), (goal - curve[-1]) / slope)
