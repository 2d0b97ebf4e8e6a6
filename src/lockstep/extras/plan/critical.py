"""How many samples a larger batch needs for the loss of the smallest one, and the critical batch, which needs twice as many.

What a batch needs is measured: the samples after which its loss, as the falling curve that is nearest to the mean of the seeds'
logarithms, is that of the smallest batch. The critical batch c follows from all of them, since one of m times the smallest needs
(c + m) / (c + 1) times the samples (McCandlish et al. 2018, arXiv:1812.06162).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from lockstep.extras.plan.branches import ENOUGH, GOAL, Branches

Array = NDArray[numpy.float64]
_LEAST_POINTS = 4
_DRAWS = 100  # of the bootstrap, at each start
_BLOCKS = 4  # of a branch, whose points scatter together
_SKIPPED = 0.2  # of a branch: the first steps of training are unlike the rest
_CLEAR = 3.0  # standard errors of the slope, by which a loss falls
_BEYOND = 1.5  # the most that the samples to a loss may be, over those of the branch
_SCATTER = 0.07  # of their logarithm, from seed to seed
_LARGEST = 64  # times the largest batch: the critical one is known to be no larger


@dataclass(frozen=True)
class Critical:
    """Of a start, in multiples of the smallest batch. value: by the fit, over the branches; draws: what it might have been by
    other draws of the noise; kept: the batches that it was fitted to; samples: seen where the smallest batch ends; worths: of a
    batch's samples, over those of the smallest, as they were measured, and then by each draw. Where `value` is beyond the batches
    that were tried, the fit is good for them, and all that can be said of the critical is that it is above."""

    value: float
    draws: Array
    kept: tuple[int, ...]
    samples: float = 0.0
    worths: Mapping[int, Array] = field(default_factory=dict)

    @property
    def tried(self) -> int:
        return max(self.kept)

    @property
    def is_above(self) -> bool:
        return self.value > self.tried

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95% interval; an end that is beyond what was tried is infinite."""
        low, high = (float(end) for end in numpy.quantile(numpy.append(self.draws, self.value), [0.025, 0.975]))
        return min(low, self.tried), high if high <= self.tried else math.inf

    def words(self, batch: int) -> str:
        low, high = (end * batch for end in self.bounds)
        if self.is_above:
            return f"above {self.tried * batch}, the largest that was tried"
        return (
            f"{self.value * batch:.0f} ({low:.0f} to {f'{high:.0f}' if math.isfinite(high) else f'above {self.tried * batch}'})"
        )


Race = Mapping[int, Array]  # the branches of a seed at their best rates, by multiple: logarithms of the losses


def _races(known: Branches, start: int) -> list[Race]:
    """Of the seeds of which something can be said."""
    races = [known.best(start, repeat) for repeat in known.repeats(start)]
    return [race for race in races if 1 in race and _falls(race[1])]


def _falls(row: Array) -> bool:
    """Clearly, by the straight line through its points."""
    x, y = numpy.arange(len(row), dtype=float), row
    x, y = (values[1 + int(_SKIPPED * len(row)) :] for values in (x, y))
    if len(row) < _LEAST_POINTS:
        return False
    slope, height = numpy.polyfit(x, y, 1)
    rest = float(numpy.sum((y - height - slope * x) ** 2)) / max(1, len(x) - 2)
    return bool(-slope > _CLEAR * math.sqrt(rest / float(numpy.sum((x - x.mean()) ** 2))))


def falling(logs: Array) -> Array:
    """The nearest curve that does not rise."""
    return isotonic_regression(logs, increasing=False).x


def points_to(curve: Array, goal: float) -> float:
    """Where a falling curve comes to the goal, between the middles of its level pieces; where it ends above, along the straight
    line that its second half has over the logarithm of the points."""
    levels, piece = numpy.unique(-curve, return_inverse=True)
    middles = numpy.bincount(piece, numpy.arange(len(curve))) / numpy.bincount(piece)
    if -goal <= levels[-1]:
        return float(numpy.interp(-goal, levels, middles))
    end, half = len(curve) - 1, len(curve) // 2
    slope = min(-1e-9, numpy.polyfit(numpy.log(numpy.arange(half, end + 1)), curve[half:], 1)[0])
    return end * math.exp(min(math.log(_BEYOND), (goal - curve[-1]) / slope))


def _worth(races: Sequence[Race], multiple: int) -> float:
    """By the mean over the seeds that have the batch."""
    pairs = [(race[1], race[multiple]) for race in races if multiple in race]
    smallest, own = (falling(numpy.mean(rows, axis=0)) for rows in zip(*pairs, strict=True))
    goal = float(numpy.interp(GOAL * (len(smallest) - 1), range(len(smallest)), smallest))
    return points_to(smallest, goal) / points_to(own, goal)


def worths(known: Branches, start: int) -> dict[int, float]:
    """By multiple: what a batch's samples are worth, by its own branches. Empty where nothing can be said."""
    races = _races(known, start)
    return {multiple: _worth(races, multiple) for multiple in sorted({multiple for race in races for multiple in race})}


def worth(known: Branches, multiple: int) -> float:
    """At the last start where the batch has a branch; NaN where nothing can be said."""
    start = max(one.start for one in known.curves if one.multiple == multiple)
    return worths(known, start).get(multiple, math.nan)


def _drawn(races: Sequence[Race], multiples: Collection[int], generator: numpy.random.Generator) -> dict[int, float]:
    """What they might be worth by other noise along the branches, and by other seeds."""
    others = [{multiple: _redrawn(row, generator) for multiple, row in race.items()} for race in races]
    errors = {m: _SCATTER * generator.normal() / math.sqrt(sum(m in race for race in races)) for m in multiples}
    return {m: 1.0 if m == 1 else _worth(others, m) * math.exp(errors[1] - errors[m]) for m in multiples}


def _redrawn(row: Array, generator: numpy.random.Generator) -> Array:
    """With other noise: the rest beside the falling curve, of each quarter of a branch with either sign (the wild bootstrap)."""
    signs = generator.choice([-1.0, 1.0], size=_BLOCKS)[numpy.arange(len(row)) * _BLOCKS // len(row)]
    expected = falling(row)
    return expected + signs * (row - expected)


def fitted(own: Mapping[int, float]) -> float:
    """The critical batch by least squares, of what batches need relative to what they are expected to need."""
    needs = {multiple: 1 / value for multiple, value in own.items() if multiple > 1}
    over = sum((m - 1) * (need - 1) / need**2 for m, need in needs.items())
    return min(_LARGEST * max(needs), sum(((m - 1) / need) ** 2 for m, need in needs.items()) / max(over, 1e-9)) - 1


def criticals(known: Branches, seed: int = 0) -> dict[int, Critical]:
    """By start; those of which nothing can be said are left out."""
    generator = numpy.random.default_rng(seed)
    found = {start: _critical(known, start, generator) for start in known.starts}
    return {start: one for start, one in found.items() if one is not None}


def _critical(known: Branches, start: int, generator: numpy.random.Generator) -> Critical | None:
    races, own = _races(known, start), worths(known, start)
    kept = {multiple: value for multiple, value in own.items() if multiple <= 2 or value >= ENOUGH}
    if len(kept) < 2:
        return None
    draws = [_drawn(races, kept, generator) for _ in range(_DRAWS)]
    samples = start + known.every * (len(races[0][1]) - 1)
    table = {multiple: numpy.array([value, *(draw[multiple] for draw in draws)]) for multiple, value in kept.items()}
    return Critical(fitted(kept), numpy.array([fitted(draw) for draw in draws]), tuple(kept), round(samples), table)


def critical_batches(known: Branches, batch: int, seed: int = 0) -> list[dict[str, Any]]:
    """By start: the batch that needs twice the samples, or the one that it is above; what samples are worth, and best rates."""
    found = criticals(known, seed)
    return [_row(known, start, batch, found.get(start)) for start in known.starts]


def _row(known: Branches, start: int, batch: int, critical: Critical | None) -> dict[str, Any]:
    is_told = critical is not None and not critical.is_above
    return {
        "from": start,
        "samples": None if critical is None else critical.samples,
        "critical_batch": critical.value * batch if critical and is_told else None,
        "critical_interval": [_finite(end * batch) for end in critical.bounds] if critical and is_told else None,
        "critical_above": critical.tried * batch if critical and not is_told else None,
        "efficiency": {multiple * batch: value for multiple, value in worths(known, start).items()},
        "best_rate": {multiple * batch: known.best_rate(start, multiple) for multiple in known.multiples(start)},
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
