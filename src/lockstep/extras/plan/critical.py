"""How many samples a larger batch needs for the loss of the smallest one, and the critical batch, which needs twice as many.

While the smallest batch sees ds samples, a batch of m times its size sees (c + m) / (c + 1) ds for the same progress (McCandlish
et al. 2018, arXiv:1812.06162), where c, the critical batch of the moment, grows with the root of the samples seen (Zhang et al.
2024, arXiv:2410.21676: it grows with the data, hardly with the model). Its size is fitted to all points of all batches.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from lockstep.extras.plan.branches import ENOUGH, LONGEST, Branches

Array = NDArray[numpy.float64]
_LEAST_POINTS = 4
_DRAWS = 100  # of the bootstrap, at each start
_BLOCKS = 4  # of a branch, whose points scatter together
_SKIPPED = 0.2  # of a branch: the first steps of training are unlike the rest
_CLEAR = 3.0  # standard errors of the slope, by which a loss falls
_CURVED = 3.0  # a loss is a power of the samples, unless an exponential's squares are smaller by so much


@dataclass(frozen=True)
class Line:
    """The logarithm of a loss: a straight line over the logarithm of samples, or the samples if that is clearly better."""

    slope: float
    height: float
    is_log: bool

    def __call__(self, samples: Array) -> Array:
        return self.height + self.slope * (numpy.log(samples) if self.is_log else samples)


@dataclass(frozen=True)
class Critical:
    """Of a start, in multiples of the smallest batch. value: by the fit, over the branches; draws: what it might have been by
    other draws of the noise; kept: the batches that it was fitted to; samples: seen where the smallest batch ends. Where `value`
    is beyond those that were tried, the fit is good for them, and all that can be said of the critical is that it is above."""

    value: float
    draws: Array
    kept: tuple[int, ...]
    samples: float = 0.0

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

    def worth(self, multiple: int) -> Array:
        """What the samples of a batch are worth, over those of the smallest: by the value, and by each draw."""
        criticals = numpy.append(self.value, self.draws)
        return (criticals + 1) / (criticals + multiple)

    def words(self, batch: int) -> str:
        low, high = (end * batch for end in self.bounds)
        if self.is_above:
            return f"above {self.tried * batch}, the largest that was tried"
        return (
            f"{self.value * batch:.0f} ({low:.0f} to {f'{high:.0f}' if math.isfinite(high) else f'above {self.tried * batch}'})"
        )


@dataclass(frozen=True)
class Race:
    """The branches of a start at their best rates, by multiple: logarithms of losses at every so many samples."""

    logs: Mapping[int, Array]
    start: int
    every: float

    @property
    def reach(self) -> float:
        """The samples of the smallest batch's branch."""
        return self.every * (len(self.logs[1]) - 1)

    def line(self) -> Line | None:
        """Of the smallest batch's loss; None where it does not fall clearly."""
        row = self.logs[1]
        first = 1 + int(_SKIPPED * len(row))
        samples = self.start + self.every * numpy.arange(first, len(row), dtype=numpy.float64)
        return fitted_line(samples, row[first:])

    def critical(self, growth: float) -> float:
        """The critical batch over the whole branch, where at x samples it is growth * sqrt(x)."""
        return self.reach / float(_saved(self.start + self.reach, growth) - _saved(self.start, growth)) - 1

    def expected(self, line: Line, multiple: int, growth: float) -> Array:
        """The loss's logarithm at each point of a larger batch: the smallest one's, where it has made the same progress."""
        progress = numpy.linspace(0, (1 + LONGEST) * self.reach, 300)
        saved = _saved(self.start + progress, growth) - _saved(self.start, growth)
        seen = self.every * numpy.arange(len(self.logs[multiple]))
        return line(self.start + numpy.maximum(numpy.interp(seen, progress + (multiple - 1) * saved, progress), self.every / 2))

    def misfit(self, line: Line, growth: float) -> float:
        rests = (row[1:] - self.expected(line, m, growth)[1:] for m, row in self.logs.items() if m > 1)
        return sum(float(numpy.mean(rest[int(_SKIPPED * len(rest)) :] ** 2)) for rest in rests)

    def part(self, multiples: Iterable[int]) -> "Race":
        return Race({multiple: self.logs[multiple] for multiple in multiples}, self.start, self.every)

    def redrawn(self, line: Line, growth: float, generator: numpy.random.Generator) -> "Race":
        """With other noise: what is left beside the fit, of each quarter of a branch with either sign (the wild bootstrap)."""
        return Race({m: self._redrawn(line, m, growth, generator) for m in self.logs}, self.start, self.every)

    def _redrawn(self, line: Line, multiple: int, growth: float, generator: numpy.random.Generator) -> Array:
        row, expected = self.logs[multiple], self.expected(line, multiple, growth)
        signs = generator.choice([-1.0, 1.0], size=_BLOCKS)[numpy.arange(len(row)) * _BLOCKS // len(row)]
        return numpy.append(row[0], expected[1:] + signs[1:] * (row - expected)[1:])


@dataclass(frozen=True)
class Races:
    """Of a start: a race for each seed, and the line of its smallest batch. The critical batch is that of all of them."""

    all: tuple[tuple[Race, Line], ...]

    @property
    def multiples(self) -> list[int]:
        return sorted({multiple for race, _ in self.all for multiple in race.logs})

    @property
    def end(self) -> float:
        return self.all[0][0].start + self.all[0][0].reach

    def critical(self, growth: float) -> float:
        return self.all[0][0].critical(growth)

    def growth(self) -> float:
        """By least squares."""
        unit = -0.5 * math.log(self.end)
        bounds = (unit + math.log(0.02), unit + math.log(64 * max(self.multiples)))

        def misfit(log: float) -> float:
            return sum(race.misfit(line, math.exp(log)) for race, line in self.all)

        return math.exp(minimize_scalar(misfit, bounds=bounds, method="bounded", options={"xatol": 0.01}).x)

    def part(self, multiples: Collection[int]) -> "Races":
        """Of these batches, in the races that have more than the smallest one of them."""
        parts = [(race.part(set(multiples) & {*race.logs}), line) for race, line in self.all]
        return Races(tuple(one for one in parts if len(one[0].logs) > 1))

    def redrawn(self, growth: float, generator: numpy.random.Generator) -> "Races":
        """With other noise; those whose smallest batch's loss still falls clearly."""
        others = [race.redrawn(line, growth, generator) for race, line in self.all]
        return Races(tuple((race, line) for race in others if (line := race.line()) is not None))


def _saved(samples: Any, growth: float) -> Any:
    """The integral of 1 / (growth * sqrt(x) + 1): what one more smallest batch costs, in samples."""
    roots = growth * numpy.sqrt(samples)
    return 2 / growth**2 * (roots - numpy.log1p(roots))


def fitted_line(samples: Array, logs: Array) -> Line | None:
    """Returns None for one that does not fall clearly."""
    fits = []
    for is_log in (True, False):
        x = numpy.log(samples) if is_log else samples
        slope, height = numpy.polyfit(x, logs, 1)
        rest = float(numpy.sum((logs - height - slope * x) ** 2))
        error = math.sqrt(rest / max(1, len(x) - 2) / float(numpy.sum((x - x.mean()) ** 2)))
        fits.append((rest * (1 if is_log else _CURVED), Line(float(slope), float(height), is_log), -slope > _CLEAR * error))
    _, line, falls = min(fits, key=lambda one: one[0])
    return line if falls else None


def _races(known: Branches, start: int) -> Races:
    """Of the seeds of which something can be said."""
    races = [Race(known.best(start, repeat), start, known.every) for repeat in known.repeats(start)]
    long = [race for race in races if len(race.logs.get(1, ())) >= _LEAST_POINTS]
    return Races(tuple((race, line) for race in long if (line := race.line()) is not None))


def worths(known: Branches, start: int) -> dict[int, float]:
    """By multiple: what a batch's samples are worth, by its own branches. Empty where nothing can be said."""
    if not (races := _races(known, start)).all:
        return {}
    values = {m: races.critical(races.part((1, m)).growth()) for m in races.multiples if m > 1}
    return {1: 1.0} | {multiple: (value + 1) / (value + multiple) for multiple, value in values.items()}


def worth(known: Branches, multiple: int) -> float:
    """At the last start where the batch has a branch; NaN where nothing can be said."""
    start = max(one.start for one in known.curves if one.multiple == multiple)
    return worths(known, start).get(multiple, math.nan)


def criticals(known: Branches, seed: int = 0) -> dict[int, Critical]:
    """By start; those of which nothing can be said are left out."""
    generator = numpy.random.default_rng(seed)
    found = {start: _critical(known, start, generator) for start in known.starts}
    return {start: one for start, one in found.items() if one is not None}


def _critical(known: Branches, start: int, generator: numpy.random.Generator) -> Critical | None:
    own = worths(known, start)
    kept = [multiple for multiple in own if multiple <= 2 or own[multiple] >= ENOUGH]
    if len(kept) < 2:
        return None
    races = _races(known, start).part(kept)
    growth = races.growth()
    others = [races.redrawn(growth, generator) for _ in range(_DRAWS)]
    draws = [other.critical(other.growth()) for other in others if other.all]
    return Critical(races.critical(growth), numpy.array(draws), tuple(kept), round(races.end))


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
