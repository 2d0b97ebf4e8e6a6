"""How many samples a larger batch needs for the loss of the smallest one, and the critical batch, which needs twice as many.

The critical batch c follows from what all of them need, since one of m times the smallest needs (c + m) / (c + 1) times the
samples (McCandlish et al. 2018, arXiv:1812.06162).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
from numpy.typing import NDArray

from lockstep.extras.plan.branches import ENOUGH, Branches
from lockstep.extras.plan.surface import fitted_surface

Array = NDArray[numpy.float64]
_LARGEST = 64  # times the largest batch: the critical one is known to be no larger


@dataclass(frozen=True)
class Critical:
    """Of a start, in multiples of the smallest batch. value: by the fit, over the branches; draws: what it might have been by
    other draws of the noise; kept: the batches that it was fitted to; samples: seen where the smallest batch ends; worths: of a
    batch's samples, over those of the smallest, and then by each draw. Where `value` is beyond the batches
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


def worths(known: Branches, start: int) -> dict[int, float]:
    """By multiple: what a batch's samples are worth. Empty where nothing can be said."""
    return {multiple: float(draws[0]) for multiple, draws in fitted_surface(known, start).worths.items()}


def worth(known: Branches, multiple: int) -> float:
    """At the last start where the batch has a branch; NaN where nothing can be said."""
    start = max(one.start for one in known.curves if one.multiple == multiple)
    return worths(known, start).get(multiple, math.nan)


def fitted(own: Mapping[int, float]) -> float:
    """The critical batch by least squares, of what batches need relative to what they are expected to need."""
    needs = {multiple: 1 / value for multiple, value in own.items() if multiple > 1}
    over = sum((m - 1) * (need - 1) / need**2 for m, need in needs.items())
    return min(_LARGEST * max(needs), sum(((m - 1) / need) ** 2 for m, need in needs.items()) / max(over, 1e-9)) - 1


def criticals(known: Branches, seed: int = 0) -> dict[int, Critical]:
    """By start; those of which nothing can be said are left out."""
    found = {start: _critical(known, start, seed) for start in known.starts}
    return {start: one for start, one in found.items() if one is not None}


def _critical(known: Branches, start: int, seed: int) -> Critical | None:
    surface = fitted_surface(known, start, seed)
    kept = {multiple: draws for multiple, draws in surface.worths.items() if multiple <= 2 or draws[0] >= ENOUGH}
    if len(kept) < 2:
        return None
    value, *draws = (float(fitted(dict(zip(kept, column, strict=True)))) for column in zip(*kept.values(), strict=True))
    return Critical(value, numpy.array(draws), tuple(kept), known.samples(start), kept)


def critical_batches(known: Branches, batch: int, seed: int = 0) -> list[dict[str, Any]]:
    """By start: the batch that needs twice the samples, or the one that it is above; what samples are worth, and best rates."""
    found = criticals(known, seed)
    return [_row(known, start, batch, found.get(start)) for start in known.starts]


def _row(known: Branches, start: int, batch: int, critical: Critical | None) -> dict[str, Any]:
    is_told = critical is not None and not critical.is_above
    surface = fitted_surface(known, start)
    return {
        "from": start,
        "samples": None if critical is None else critical.samples,
        "critical_batch": critical.value * batch if critical and is_told else None,
        "critical_interval": [_finite(end * batch) for end in critical.bounds] if critical and is_told else None,
        "critical_above": critical.tried * batch if critical and not is_told else None,
        "efficiency": {multiple * batch: float(draws[0]) for multiple, draws in surface.worths.items()},
        "best_rate": {multiple * batch: surface.best_rates(multiple)[0] for multiple in surface.worths},
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
