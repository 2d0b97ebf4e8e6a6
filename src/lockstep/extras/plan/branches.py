"""Branches of one training at other batches and rates, and what of its samples' worth a larger batch keeps.

All branches of a checkpoint begin with the same weights and see the same samples in the same order: what differs between them is
the batch and the rate alone (as in Merrill et al. 2025, arXiv:2505.23971, who measure the critical batch so). What the samples
just seen do to all losses alike is taken out before they are compared.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

Curve = Sequence[float]  # losses at the branch's beginning and at equal distances of samples up to its end; inf: diverged
HALF, WHOLE = 1, 2  # how far a branch has come, in halves of the length that all are meant to have; some go on beyond it
Array = NDArray[numpy.float64]
_SIDE = math.sqrt(2)  # the factor from a rate to the one beside it
_MOST_RATES = 5  # of one batch at one checkpoint
_CLEAR = 2.0  # standard errors: a batch within them loses nothing
_CLEAR_AT_HALF = 3.0  # standard errors by which a rate is worse than the best one, and is given up
_ENOUGH = 0.6  # a batch that keeps less of its samples' worth is the last one that is tried
_LARGEST_ERROR = 0.25  # of a worth; above it losses say nothing
_WORTHS = numpy.linspace(0, 2, 401)  # that are tried


@dataclass(frozen=True)
class Branch:
    """A short training from the checkpoint `start` with another batch, in multiples of the smallest, and another rate."""

    start: int
    multiple: int
    rate: float


Measure = Callable[[Sequence[Branch], int], Sequence[Curve | None]]  # curves up to so many halves; None: the budget is spent


@dataclass(frozen=True)
class Worths:
    """What the samples of each branch of a checkpoint are worth: the part of them after which the reference, a branch with the
    smallest batch, has the same loss. error: the standard error of the longest's; NaN where nothing was repeated."""

    by_branch: Mapping[Branch, float]
    error: float

    def at(self, multiple: int) -> dict[float, float]:
        return dict(sorted((one.rate, worth) for one, worth in self.by_branch.items() if one.multiple == multiple))

    @property
    def is_sure(self) -> bool:
        return self.error <= _LARGEST_ERROR

    def keeps_up(self, multiple: int) -> bool:
        """Whether a batch is as good as the smallest at equal samples, as far as the branches' own spread shows."""
        (_, own), (_, base) = best_rate(self.at(multiple)), best_rate(self.at(1))
        return own >= base - _CLEAR * math.sqrt(2) * (0 if math.isnan(self.error) else self.error)


@dataclass
class Branches:
    """What was measured. halves: how far each branch has come."""

    curves: dict[Branch, list[float]] = field(default_factory=dict)
    halves: dict[Branch, int] = field(default_factory=dict)

    @property
    def starts(self) -> list[int]:
        return sorted({one.start for one in self.curves})

    def multiples(self, start: int) -> list[int]:
        return sorted({one.multiple for one in self.curves if one.start == start and math.isfinite(sum(self.curves[one]))})

    def lowest(self, start: int) -> float:
        """The loss to which the smallest batch has come at its best rate."""
        return min(curve[-1] for one, curve in self.curves.items() if one.start == start and one.multiple == 1)

    def logs(self, start: int) -> dict[Branch, Array]:
        """The logarithms of the losses of the branches that have not diverged."""
        own = {one: curve for one, curve in self.curves.items() if one.start == start}
        return {one: numpy.log(curve) for one, curve in own.items() if math.isfinite(sum(curve)) and min(curve) > 0}

    @property
    def spread(self) -> float:
        """The standard deviation of the logarithm of a loss: what is left of the curves beside a parabola each, and beside what
        all branches of a checkpoint have in common. A branch whose loss has risen has too large a rate, which is no noise. NaN
        for too few of them."""
        squares, free = 0.0, 0
        for part in (part for start in self.starts for part in _by_length(self.logs(start))):
            rows = _rest(numpy.array([row for row in part.values() if row[-1] < row[0]]))
            squares += float(numpy.sum((rows - rows.mean(axis=0)) ** 2)) if len(rows) > 1 else 0.0
            free += max(0, len(rows) - 1) * max(0, rows.shape[-1] - 3)
        return math.sqrt(squares / free) if free else math.nan

    def worths(self, start: int) -> Worths:
        """Of branches of several lengths, those of each are compared with one another, and count by their own."""
        known, spread = Worths({}, math.nan), self.spread
        for logs in _by_length(self.logs(start)):
            if any(one.multiple == 1 for one in logs):
                longer = _compared(logs, spread)
                known = Worths({**known.by_branch, **longer.by_branch}, longer.error)
        return known

    def perturbed(self, generator: numpy.random.Generator, spread: float, start: int) -> "Branches":
        """Those of one checkpoint, with losses that another draw of the noise might have given."""
        own = {one: curve for one, curve in self.curves.items() if one.start == start}
        noise = generator.normal(scale=0 if math.isnan(spread) else spread, size=(len(own), max(map(len, own.values()))))
        noise[:, 0] = 0
        return Branches(
            {one: [*(curve * numpy.exp(row[: len(curve)]))] for (one, curve), row in zip(own.items(), noise, strict=True)}
        )


def _by_length(logs: Mapping[Branch, Array]) -> list[dict[Branch, Array]]:
    """For each length that there is, the shortest first: as much of those that have come so far."""
    return [
        {one: row[:points] for one, row in logs.items() if len(row) >= points} for points in sorted({*map(len, logs.values())})
    ]


def _compared(logs: Mapping[Branch, Array], spread: float) -> Worths:
    """Of branches of one length, among them some with the smallest batch."""
    bases = [one for one in logs if one.multiple == 1]
    points = len(logs[bases[0]])
    reference = logs[min(bases, key=lambda one: float(numpy.mean(logs[one][points // 2 :])))]
    common = _rest(numpy.array([logs[one] for one in bases])).mean(axis=0)
    expected = _warped(reference - common)
    own = numpy.array([*logs.values()]) - common
    misfits = numpy.sum(expected**2, axis=1)[:, None] - 2 * expected @ own[:, 1:].T  # but for what is the same for all worths
    by_branch = dict(zip(logs, _WORTHS[misfits.argmin(axis=0)].tolist(), strict=True))
    slopes = (expected[201] - expected[199]) / (_WORTHS[201] - _WORTHS[199])  # around a worth of one
    steepness = math.sqrt(float(slopes @ slopes))
    return Worths(by_branch, spread / steepness if steepness else math.inf)


def _parabola(logs: Array) -> Array:
    """By least squares, of curves along the last axis."""
    basis: Array = numpy.vander(numpy.arange(logs.shape[-1]), 3).astype(numpy.float64)
    return (basis @ numpy.linalg.lstsq(basis, logs.T, rcond=None)[0]).T


def _rest(rows: Array) -> Array:
    return rows - _parabola(rows) if rows.size else rows


def _warped(reference: Array) -> Array:
    """For each worth the curve of a branch that has it, without its beginning: a smooth curve that falls, and goes on beyond its
    end as it falls at its end."""
    fine = numpy.linspace(0, len(reference) - 1, 201)
    coefficients = numpy.polyfit(numpy.arange(len(reference)), reference, 2)
    curve = numpy.minimum.accumulate(numpy.polyval(coefficients, fine))
    at = numpy.outer(_WORTHS, numpy.arange(1, len(reference)))
    slope = (curve[-1] - curve[-21]) / (fine[-1] - fine[-21])
    return numpy.interp(at, fine, curve) + slope * numpy.maximum(0, at - fine[-1])


def best_rate(worths: Mapping[float, float]) -> tuple[float, float]:
    """The rate of the largest worth, by a parabola in the rate's logarithm through the best and its neighbours, and the largest
    worth that was measured. Never a rate beyond the measured ones: there it is the outermost itself."""
    known = sorted(worths.items())
    if not known:
        return math.nan, 0.0
    best = max(range(len(known)), key=lambda number: known[number][1])
    if not 0 < best < len(known) - 1:
        return known[best]
    rates, values = numpy.array(known[best - 1 : best + 2]).T
    rates = numpy.log(rates / rates[1])
    a, b, _ = numpy.polyfit(rates, values, 2)
    at = float(numpy.clip(-b / (2 * a), rates[0], rates[2])) if a < 0 else 0.0
    return known[best][0] * math.exp(at), known[best][1]


def explore(measure: Measure, starts: Iterable[int], rate: float, largest: int, step: Callable[[int], float]) -> Branches:
    """Tries batches of 1, 2, 4, ... up to `largest` times the smallest, until one needs nearly twice its samples.

    `step(multiple)` is the factor that the optimizer's rule has for the rate of a batch so many times as large. Of a larger batch
    the rule's rate is tried first, from the best one of the batch before; the rates beside it only where that one is worse. Where
    there are several, those that are clearly worse after half a branch are given up there (as by successive halving, Jamieson and
    Talwalkar 2016, arXiv:1502.07943, but by what losses scatter).
    """
    known = Branches()
    centres = dict.fromkeys(starts, rate)  # of the checkpoints where there is more to try
    multiple = 1
    while centres and multiple <= largest:
        for start, centre in [*centres.items()]:
            if not _try_rates(known, measure, start, multiple, centre):
                return known
            kept = efficiencies(known, start).get(multiple, 0)
            best, _ = best_rate(known.worths(start).at(multiple))
            centres[start] = best * step(2 * multiple) / step(multiple)
            if kept < _ENOUGH:
                del centres[start]
        multiple *= 2
    return known


def _try_rates(known: Branches, measure: Measure, start: int, multiple: int, centre: float) -> bool:
    """Measures the rates of one batch until the verdict is clear. False: the budget is spent."""
    wanted = [centre / _SIDE, centre, centre * _SIDE] if multiple == 1 else [centre]
    tried: list[float] = []
    while wanted:
        tried += wanted
        if not extend(known, measure, [Branch(start, multiple, rate) for rate in wanted], HALF):
            return False
        if not extend(known, measure, still_in_question(known, start, multiple, wanted), WHOLE):
            return False
        wanted = _further_rates(known.worths(start), multiple, tried)
    return True


def extend(known: Branches, measure: Measure, branches: Sequence[Branch], halves: int) -> bool:
    """Has branches go on until so many halves of their length. False: the budget is spent."""
    for branch, curve in zip(branches, measure(branches, halves) if branches else [], strict=True):
        if curve is None:
            return False
        known.halves[branch] = halves
        known.curves[branch] = [loss if math.isfinite(loss) else math.inf for loss in curve]
    return True


def extend_longest(known: Branches, measure: Measure) -> bool:
    """Has the best branch of each batch go on by half a length, at the checkpoint where they say least. False: the budget is
    spent."""
    start = max(known.starts, key=lambda one: known.worths(one).error)
    curves, worths = known.logs(start), known.worths(start).by_branch
    points = max(map(len, curves.values()), default=0)
    longest = [one for one in curves if len(curves[one]) == points]
    if not any(one.multiple == 1 for one in longest):
        return False
    best = [
        max((one for one in longest if one.multiple == multiple), key=lambda one: worths[one])
        for multiple in sorted({one.multiple for one in longest})
    ]
    return extend(known, measure, best, known.halves[best[0]] + 1)


def still_in_question(known: Branches, start: int, multiple: int, rates: Sequence[float]) -> list[Branch]:
    """The rates that are not clearly worse than the best one."""
    worths = known.worths(start)
    own = worths.at(multiple)
    margin = _CLEAR_AT_HALF * math.sqrt(2) * (math.inf if math.isnan(worths.error) else worths.error)
    least = max(own.values(), default=0.0) - margin
    return [Branch(start, multiple, rate) for rate in rates if rate in own and own[rate] >= least]


def _further_rates(worths: Worths, multiple: int, tried: Sequence[float]) -> list[float]:
    if multiple > 1 and worths.keeps_up(multiple):
        return []
    if len(tried) == 1:
        return [tried[0] / _SIDE, tried[0] * _SIDE]
    best, _ = max(worths.at(multiple).items(), key=lambda pair: pair[1], default=(min(tried), 0.0))
    if len(tried) >= _MOST_RATES or min(tried) < best < max(tried):
        return []
    return [min(tried) / _SIDE if best == min(tried) else max(tried) * _SIDE]


def efficiencies(known: Branches, start: int) -> dict[int, float]:
    """By multiple: the samples that the smallest batch needs for the same loss, over those that this one has taken. Empty where
    the losses of the smallest batch do not fall clearly."""
    worths = known.worths(start)
    _, base = best_rate(worths.at(1))
    if not worths.is_sure or base <= 0:
        return {}
    return {multiple: best_rate(worths.at(multiple))[1] / base for multiple in known.multiples(start)}


def direct_critical(known: Branches, start: int) -> int:
    """The largest multiple of the smallest batch, of those tried, that keeps up."""
    worths = known.worths(start)
    return max((multiple for multiple in known.multiples(start) if worths.keeps_up(multiple)), default=1)


def critical_batch(known: Branches, start: int) -> float:
    """In multiples of the smallest batch: at which twice the samples are needed. By least squares of 1 / (1 + batch / critical),
    what McCandlish et al. 2018, arXiv:1812.06162, have for it, in the efficiencies; NaN where nothing can be said."""
    measured = efficiencies(known, start)
    if len(measured) < 2:
        return math.nan
    multiples, values = (numpy.array([*numbers], dtype=float) for numbers in (measured.keys(), measured.values()))
    grid = numpy.geomspace(0.25, 64 * multiples.max(), 2000)[:, None]
    misfit = numpy.sum(((1 + 1 / grid) / (1 + multiples / grid) - values) ** 2, axis=1)
    return float(grid[numpy.argmin(misfit), 0])
