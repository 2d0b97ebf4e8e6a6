"""Branches of one training at other batches and rates, and how much of the samples' worth a larger batch keeps.

All branches of a checkpoint begin with the same weights and see the same samples in the same order: what differs between them is
the batch and the rate alone (as in Merrill et al. 2025, arXiv:2505.23971, who measure the critical batch so).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy

Curve = Sequence[float]  # losses at the branch's beginning and at equal distances of samples up to its end; inf: diverged
Measure = Callable[[Sequence["Branch"]], Sequence[Curve | None]]  # None: the budget is spent
_SIDE = math.sqrt(2)  # the factor from a rate to the one beside it
_MOST_RATES = 5  # of one batch at one checkpoint
_CLEAR = 2.0  # standard errors of a difference of two losses: a batch within them loses nothing
_ENOUGH = 0.6  # a batch that keeps less of its samples' worth is the last one that is tried
_SHOWS_PROGRESS = 4.0  # of a branch: times the spread, else its losses say nothing


@dataclass(frozen=True)
class Branch:
    """A short training from the checkpoint `start` with another batch, in multiples of the smallest, and another rate."""

    start: int
    multiple: int
    rate: float


@dataclass
class Branches:
    """What was measured."""

    curves: dict[Branch, list[float]] = field(default_factory=dict)

    def at(self, start: int, multiple: int) -> dict[float, float]:
        """The last losses by rate."""
        own = {one.rate: curve[-1] for one, curve in self.curves.items() if (one.start, one.multiple) == (start, multiple)}
        return dict(sorted(own.items()))

    def multiples(self, start: int) -> list[int]:
        return sorted({one.multiple for one in self.curves if one.start == start and math.isfinite(self.curves[one][-1])})

    @property
    def starts(self) -> list[int]:
        return sorted({one.start for one in self.curves})

    @property
    def spread(self) -> float:
        """The standard deviation of a loss: what is left of the curves' logarithms beside a parabola, over all branches."""
        points = max(map(len, self.curves.values()), default=0)
        whole = [curve for curve in self.curves.values() if len(curve) == points and min(curve) > 0 and math.isfinite(sum(curve))]
        if points < 4 or not whole:
            return math.nan
        logs = numpy.log(whole).T
        parabolas = numpy.vander(numpy.arange(points), 3)
        rest = logs - parabolas @ numpy.linalg.lstsq(parabolas, logs, rcond=None)[0]
        return math.sqrt(float(numpy.sum(rest**2)) / (len(whole) * (points - 3)))

    def perturbed(self, generator: numpy.random.Generator, spread: float) -> "Branches":
        """The same with losses that another draw of the noise might have given."""
        return Branches(
            {
                one: [curve[0], *(loss * math.exp(spread * generator.normal()) for loss in curve[1:])]
                for one, curve in self.curves.items()
            }
        )


def best_rate(losses: Mapping[float, float]) -> tuple[float, float]:
    """The rate of least loss by a parabola in the logarithms through the best and its neighbours, and the least loss that was
    measured. Never a rate beyond the measured ones: there it is the outermost itself."""
    finite = [(rate, loss) for rate, loss in sorted(losses.items()) if math.isfinite(loss)]
    if not finite:
        return math.nan, math.inf
    best = min(range(len(finite)), key=lambda number: finite[number][1])
    if not 0 < best < len(finite) - 1:
        return finite[best]
    rates, losses_there = numpy.log(finite[best - 1 : best + 2]).T
    a, b, _ = numpy.polyfit(rates - rates[1], losses_there, 2)
    if a <= 0:
        return finite[best]
    at = float(numpy.clip(-b / (2 * a), rates[0] - rates[1], rates[2] - rates[1]))
    return math.exp(rates[1] + at), finite[best][1]


def is_at_the_edge(losses: Mapping[float, float]) -> int:
    """-1 where the lowest rate that was measured is the best, 1 where the highest is, else 0."""
    rates = sorted(losses)
    best = min(rates, key=lambda rate: losses[rate])
    return -1 if best == rates[0] else 1 if best == rates[-1] else 0


def explore(measure: Measure, starts: Iterable[int], rate: float, largest: int, step: Callable[[int], float]) -> Branches:
    """Tries batches of 1, 2, 4, ... up to `largest` times the smallest, until one needs nearly twice its samples.

    `step(multiple)` is the factor that the optimizer's rule has for the rate of a batch so many times as large. Of a larger batch
    the rule's rate is tried first, from the best one of the batch before; the rates beside it only where that one is worse.
    """
    known = Branches()
    open_starts = dict.fromkeys(starts, rate)
    multiple = 1
    while open_starts and multiple <= largest:
        for start, centre in [*open_starts.items()]:
            if not _try_rates(known, measure, start, multiple, centre):
                return known
            best, _ = best_rate(known.at(start, multiple))
            if math.isnan(best) or efficiencies(known, start).get(multiple, 0) < _ENOUGH:
                del open_starts[start]
            else:
                open_starts[start] = best * step(2 * multiple) / step(multiple)
        multiple *= 2
    return known


def _try_rates(known: Branches, measure: Measure, start: int, multiple: int, centre: float) -> bool:
    """Measures the rates of one batch until the verdict is clear. False: the budget is spent."""
    wanted = [centre / _SIDE, centre, centre * _SIDE] if multiple == 1 else [centre]
    while wanted:
        branches = [Branch(start, multiple, rate) for rate in wanted]
        for branch, curve in zip(branches, measure(branches), strict=True):
            if curve is None:
                return False
            known.curves[branch] = [loss if math.isfinite(loss) else math.inf for loss in curve]
        wanted = _further_rates(known, start, multiple, centre)
    return True


def _further_rates(known: Branches, start: int, multiple: int, centre: float) -> list[float]:
    losses = known.at(start, multiple)
    if multiple > 1 and keeps_up(known, start, multiple):
        return []
    if len(losses) == 1:
        return [centre / _SIDE, centre * _SIDE]
    side = is_at_the_edge(losses)
    if not side or len(losses) >= _MOST_RATES:
        return []
    return [min(losses) / _SIDE if side < 0 else max(losses) * _SIDE]


def keeps_up(known: Branches, start: int, multiple: int) -> bool:
    """Whether a batch is as good as the smallest one at equal samples, as far as the branches' own spread shows."""
    (_, loss), (_, base) = best_rate(known.at(start, multiple)), best_rate(known.at(start, 1))
    spread = known.spread
    return math.isfinite(loss) and loss <= base * math.exp(_CLEAR * math.sqrt(2) * (0 if math.isnan(spread) else spread))


def direct_critical(known: Branches, start: int) -> int:
    """The largest multiple of the smallest batch, of those tried, that keeps up."""
    return max((multiple for multiple in known.multiples(start) if keeps_up(known, start, multiple)), default=1)


def efficiencies(known: Branches, start: int) -> dict[int, float]:
    """By multiple: how many samples the smallest batch needs for the same loss, over how many this one has taken. Empty where
    the losses of the smallest batch do not fall clearly."""
    base = [curve for one, curve in known.curves.items() if (one.start, one.multiple) == (start, 1)]
    finite = [curve for curve in base if math.isfinite(curve[-1]) and min(curve) > 0]
    if not finite:
        return {}
    curve = min(finite, key=lambda one: one[-1])
    logs = numpy.minimum.accumulate(numpy.log(curve))
    if not logs[0] - logs[-1] > _SHOWS_PROGRESS * known.spread:
        return {}
    losses = {multiple: best_rate(known.at(start, multiple))[1] for multiple in known.multiples(start)}
    samples = {multiple: _samples_to(math.log(loss), logs) for multiple, loss in losses.items() if loss > 0}
    return {multiple: max(0.0, own / samples[1]) for multiple, own in samples.items()} if samples.get(1, 0) > 0 else {}


def _samples_to(loss: float, logs: numpy.ndarray) -> float:
    """Where the curve reaches a loss, in its own distances of samples; beyond its end along its last stretch."""
    at = numpy.arange(len(logs), dtype=float)
    if loss < logs[-1]:
        slope = logs[-2] - logs[-1]
        return float(at[-1] + (min(1.0, (logs[-1] - loss) / slope) if slope > 0 else 0.0))
    falling = numpy.concatenate([[True], numpy.diff(logs) < 0])
    return float(numpy.interp(-loss, -logs[falling], at[falling]))


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
