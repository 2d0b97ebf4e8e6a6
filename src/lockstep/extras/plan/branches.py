"""Trainings at other batches and rates, each a part of one, and which of them are tried.

All branches of a start have the same weights at first and see the same samples in the same order: what differs between them is
the batch and the rate alone (as in Merrill et al. 2025, arXiv:2505.23971). Rates are compared from the first step of training on.
From a checkpoint they can't be: there the loss falls at once when the rate does, by what the noise of the steps had added, and
the smallest rate looks best. With the rule's rate a larger batch has the same noise as the smallest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy
from numpy.typing import NDArray

Curve = Sequence[float]  # losses at the branch's beginning and at equal distances of samples up to its end; inf: diverged
Array = NDArray[numpy.float64]
SIDE = 2.0  # the factor from a rate to the one beside it, for the smallest batch
CLOSE = 2.0**0.5  # for larger ones: the best rate of twice the batch is seldom less than the square root's or more than twice
_MOST_RATES, _MOST_CLOSE = 6, 4  # of a batch
_SAME_RATE = 0.1  # of the logarithm: rates that are closer are the same
_LEAST_LEVEL = 3  # points whose median ranks a rate
_SPIKE = 2  # points on either side
ENOUGH = 0.4  # of the worth of the smallest batch's samples; a batch that keeps less is the last one that is tried
LONGEST = 2.0  # the samples that a larger batch gets at most, over those of the smallest one
GOAL = 0.8  # of the smallest batch's branch: the loss there is what batches are compared at, so that all go on beyond it
_SHORTEST = 1.2  # of a larger batch's branches, over those of the smallest one


@dataclass(frozen=True)
class Branch:
    """A part of a training from `start` samples on, with a batch in multiples of the smallest one, and a rate. repeat: 0 with the
    training's own seed, each other number with another one."""

    start: int
    multiple: int
    rate: float
    repeat: int = 0


Measure = Callable[[Sequence[Branch], int], Sequence[Curve | None]]  # curves of so many points; None: the budget is spent
Pays = Callable[[int, float], bool]  # whether a multiple's batch can, if it needs so many samples for one of half of it
Worth = Callable[["Branches", int], float]  # of a multiple's samples over those of the smallest batch; NaN: can't be said


@dataclass
class Branches:
    """What was measured. every: samples from one point of a curve to the next; factor: by how much the optimizer's rule has the
    rate grow for a multiple of the smallest batch."""

    every: float = 1.0
    curves: dict[Branch, list[float]] = field(default_factory=dict)
    factor: Callable[[int], float] = float

    @property
    def starts(self) -> list[int]:
        return sorted({one.start for one in self.curves})

    def repeats(self, start: int) -> list[int]:
        return sorted({one.repeat for one in self.curves if one.start == start})

    def rates(self, start: int, multiple: int) -> dict[float, float]:
        """Of a batch's longest branches with the training's own seed: the median logarithm of the loss in their last third, by
        rate; infinite for one that has diverged, with any seed."""
        own = {one: curve for one, curve in self.curves.items() if (one.start, one.multiple) == (start, multiple)}
        longest = max(map(len, own.values()), default=0)
        diverged = {one.rate for one, curve in own.items() if not math.isfinite(sum(curve))}
        levels = {one.rate: _level(curve) for one, curve in own.items() if one.repeat == 0 and len(curve) == longest}
        return {rate: math.inf if rate in diverged else levels[rate] for rate in sorted(levels)}

    def best_rate(self, start: int, multiple: int) -> float:
        """One of those that were tried, and none between them or beyond; NaN where all have diverged."""
        known = self.rates(start, multiple)
        best = min(known, key=lambda rate: known[rate], default=math.nan)
        return best if math.isfinite(known.get(best, math.inf)) else math.nan

    def interpolated_rate(self, start: int, multiple: int) -> float:
        """The lowest point of the parabola through the best rate and those beside it, over the rates' logarithms; the best one
        itself where it is the outermost, or one beside it has diverged."""
        known, best = self.rates(start, multiple), self.best_rate(start, multiple)
        rates = [*known]
        at = rates.index(best) if best in known else 0
        beside = rates[max(0, at - 1) : at + 2]
        levels = [known[rate] for rate in beside]
        if len(beside) < 3 or not math.isfinite(sum(levels)):
            return best
        a, b, _ = numpy.polyfit(numpy.log(beside) - math.log(best), levels, 2)
        return best * math.exp(-b / (2 * a)) if a > 0 else best

    def multiples(self, start: int) -> list[int]:
        """The batches of which a branch has not diverged."""
        tried = sorted({one.multiple for one in self.curves if one.start == start})
        return [multiple for multiple in tried if math.isfinite(self.best_rate(start, multiple))]

    def best(self, start: int, repeat: int = 0) -> dict[int, Array]:
        """By multiple: the logarithms of the losses at its best rate, without what stands out for a point or two."""
        branches = [Branch(start, multiple, self.best_rate(start, multiple), repeat) for multiple in self.multiples(start)]
        return {one.multiple: running_median(numpy.log(self.curves[one])) for one in branches if one in self.curves}

    def goal(self, start: int) -> float:
        """The loss that batches are compared at: the smallest one's at its best rate, as the geometric mean over the seeds."""
        rows = [logs[1] for repeat in self.repeats(start) if 1 in (logs := self.best(start, repeat))]
        return math.exp(numpy.mean([row[round(GOAL * (len(row) - 1))] for row in rows]))

    def samples(self, start: int) -> int:
        """Seen where the smallest batch's longest branch ends."""
        longest = max(len(curve) for one, curve in self.curves.items() if (one.start, one.multiple) == (start, 1))
        return round(start + self.every * (longest - 1))

    def with_another_seed(self, rates: Mapping[int, Sequence[float]]) -> dict[Branch, int]:
        """The branches of these batches at these rates, and of the smallest at its best, from the first step on, with a seed that
        none has had; and the points that they have with the training's own."""
        repeat = max(self.repeats(0)) + 1
        own = [Branch(0, multiple, rate) for multiple in sorted(rates) for rate in rates[multiple]]
        own += [Branch(0, 1, self.best_rate(0, 1))]
        return {replace(one, repeat=repeat): len(self.curves[one]) - 1 for one in own}


def _level(curve: Curve) -> float:
    last = numpy.array(curve[-max(_LEAST_LEVEL, len(curve) // 3) :], dtype=float)
    return float(numpy.median(numpy.log(last))) if math.isfinite(sum(curve)) else math.inf


def running_median(logs: Array) -> Array:
    """Of five points, towards the ends of three and one; what rises or falls all the time stays as it is. A net with BatchNorm
    sometimes has a loss of many times the one before, for as long as its running statistics lag behind."""
    sides = [min(_SPIKE, i, len(logs) - 1 - i) for i in range(len(logs))]
    return numpy.array([numpy.median(logs[i - side : i + side + 1]) for i, side in enumerate(sides)])


def explore(
    known: Branches,
    measure: Measure,
    worth: Worth,
    rate: float,
    largest: int,
    short: int,
    long: Callable[[], int],
    pays: Pays = lambda _, __: True,
) -> None:
    """Tries batches of 1, 2, 4, ... up to `largest` times the smallest from the first step on, until the samples of one are worth
    little, twice the batch can't pay or the budget is spent. Rates of the smallest are tried in branches of `short` points until
    the best one is not the outermost; then that one, a half and a quarter of it, and further ones, in branches of `long()`
    points, for the longer a training is, the smaller is its best rate, by ten times even; and last the lowest point of the
    parabola through these. A larger batch goes on for as long as it is expected to need for the same loss, and a quarter longer,
    with the rate that follows from the best one of the batch before by the optimizer's rule, and with those beside it."""
    if not _try_rates(known, measure, 1, rate, short) or math.isnan(best := known.interpolated_rate(0, 1)):
        return
    points = max(short, long())
    if not _try_rates(known, measure, 1, best / SIDE, points) or math.isnan(between := known.interpolated_rate(0, 1)):
        return
    is_new = abs(math.log(between / known.best_rate(0, 1))) > _SAME_RATE
    if is_new and not extend(known, measure, [Branch(0, 1, between)], points):
        return
    multiple, kept, needs = 2, 1.0, _SHORTEST
    while multiple <= largest and not math.isnan(before := known.best_rate(0, multiple // 2)) and kept >= ENOUGH:
        if multiple > 2 and not pays(multiple, GOAL * needs * kept):  # or fewer, for what is expected is no sure thing
            return
        rate = before * known.factor(multiple) / known.factor(multiple // 2)
        length = int(min(LONGEST, max(_SHORTEST, needs)) * points)
        if not _try_rates(known, measure, multiple, rate, length):
            return
        kept = worth(known, multiple)
        needs = _expected(multiple, kept)
        multiple *= 2


def _expected(multiple: int, kept: float) -> float:
    """The samples that twice the batch is expected to need, over those of the smallest: one of m times its size needs (c + m) /
    (c + 1) of them (McCandlish et al. 2018, arXiv:1812.06162)."""
    return 1 + (1 / kept - 1) * (2 * multiple - 1) / (multiple - 1)


def _try_rates(known: Branches, measure: Measure, multiple: int, centre: float, points: int) -> bool:
    """The rate in the middle, those beside it (of a larger batch the smaller one), and more while the outermost is the best."""
    side, most = (SIDE, _MOST_RATES) if multiple == 1 else (CLOSE, _MOST_CLOSE)
    wanted = [centre / side, centre, centre * side] if multiple == 1 else [centre / side, centre]
    tried: list[float] = []
    while wanted:
        tried = sorted([*tried, *wanted])
        if not extend(known, measure, [Branch(0, multiple, rate) for rate in wanted], points):
            return False
        best = known.best_rate(0, multiple)
        is_inside = tried[0] < best < tried[-1] or len(tried) >= most
        wanted = [] if is_inside else [tried[-1] * side if best == tried[-1] else tried[0] / side]
    return True


def at_the_rule(
    known: Branches,
    measure: Measure,
    worth: Worth,
    start: int,
    rate: float,
    largest: int,
    points: int,
) -> None:
    """Tries batches from a checkpoint, of a run whose rate at the smallest batch is `rate`, each at the rule's rate alone."""
    multiple = 1
    while multiple <= largest:
        one = Branch(start, multiple, rate * known.factor(multiple))
        if not extend(known, measure, [one], points if multiple == 1 else int(LONGEST * points)):
            return
        if multiple > 1 and not worth(known, multiple) >= ENOUGH:
            return
        multiple *= 2


def extend(known: Branches, measure: Measure, branches: Sequence[Branch], points: int) -> bool:
    """Has branches be so many points long. False: the budget is spent."""
    for branch, curve in zip(branches, measure(branches, points) if branches else [], strict=True):
        if curve is None:
            return False
        known.curves[branch] = [*curve]
    return True


def extend_each(known: Branches, measure: Measure, points: Mapping[Branch, int]) -> bool:
    """Has each branch be so many points long, those of a length at once and the shortest first. False: the budget is spent."""
    lengths = sorted({*points.values()})
    return all(extend(known, measure, [one for one in points if points[one] == length], length) for length in lengths)
