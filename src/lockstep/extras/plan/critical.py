"""The critical batch at each checkpoint, by what its branches have measured, and no further."""

import math
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from lockstep.extras.plan.branches import Branches, best_rate, critical_batch, direct_critical, efficiencies

_DRAWS = 100  # of the bootstrap, at each checkpoint


@dataclass(frozen=True)
class Critical:
    """Of a checkpoint, in multiples of the smallest batch. value: by the fit; draws: what it might have been by other draws of
    the noise; tried: the largest batch with a result. Where `value` is beyond that, the fit is good for those that
    were tried, and all that can be said of the critical one is that it is above them."""

    value: float
    draws: NDArray[numpy.float64]
    tried: int

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


def criticals(known: Branches, seed: int = 0) -> dict[int, Critical]:
    """By checkpoint; those of which nothing can be said are left out."""
    generator, spread = numpy.random.default_rng(seed), known.spread
    return {
        start: Critical(value, _draws(known, start, spread, generator), max(known.multiples(start)))
        for start in known.starts
        if math.isfinite(value := critical_batch(known, start))
    }


def _draws(known: Branches, start: int, spread: float, generator: numpy.random.Generator) -> NDArray[numpy.float64]:
    draws = [critical_batch(known.perturbed(generator, spread, start), start) for _ in range(_DRAWS)]
    return numpy.array([draw for draw in draws if math.isfinite(draw)])


def critical_batches(known: Branches, batch: int, seed: int = 0) -> list[dict[str, Any]]:
    """By checkpoint: the batch that needs twice the samples, or the one that it is above; the largest one that keeps up,
    efficiencies and best rates."""
    found = criticals(known, seed)
    return [_row(known, start, batch, found.get(start)) for start in known.starts]


def _row(known: Branches, start: int, batch: int, critical: Critical | None) -> dict[str, Any]:
    worths = known.worths(start)
    rates = {multiple * batch: best_rate(worths.at(multiple))[0] for multiple in known.multiples(start)}
    is_told = critical is not None and not critical.is_above
    return {
        "samples": start,
        "critical_batch": critical.value * batch if critical and is_told else None,
        "critical_interval": [_finite(end * batch) for end in critical.bounds] if critical and is_told else None,
        "critical_above": critical.tried * batch if critical and not is_told else None,
        "largest_that_keeps_up": direct_critical(known, start) * batch,
        "efficiency": {multiple * batch: value for multiple, value in efficiencies(known, start).items()},
        "best_rate": rates,
        "power_of_the_rate": _power(rates),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _power(rates: dict[int, float]) -> float | None:
    """With which power of the batch the best rate grows, over the batches that were measured."""
    if len(rates) < 2:
        return None
    return float(numpy.polyfit(numpy.log([*rates]), numpy.log([*rates.values()]), 1)[0])
