"""Training of both sides, and the first difference of their records. Imports no torch before there are records."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import DictConfig

from lockstep.errors import NamedFailure
from lockstep.parity.trainings import OTHER, REFERENCE, Sides

Train = Callable[[DictConfig, Path], None]
QUANTITIES = ("steps per epoch", "weights", "buffers", "samples", "validation samples", "test samples", "learning rate")
QUANTITIES += ("gradients", "training metrics", "validation metrics", "test metrics")
_STAGES = ("validation", "epoch", "step", "test")  # in their order, between two optimizer steps
# max|a-b| / max|a| by the bits of the precision. An operation rounds by 2^-53, 2^-24 and 2^-9. In float64 the sums of a step
# differ by 1e-13 in nets of 50 layers, and training makes 1e-10 of it in 50 steps (benchmarks/parity.md); what has a cause begins
# at 1e-6. In float32 nothing lies between the two, so that a difference there is compared again in float64.
_TOLERATED = {64: 1e-8, 32: 1e-3, 16: 1e-1}
_STORED = {64: 0.0, 32: 1e-5, 16: 1e-1}  # tolerances of numbers that are stored in fewer bits, as metrics are
_SAME = 1e-10  # tolerance of values that no step has rounded
# Least scale of a tensor's differences, as a part of the largest of its quantity: the gradient of a bias before a norm is
# rounding alone, and so is Adam's step from it.
_AT_LEAST = {"gradients": {64: 1e-6, 32: 1e-2, 16: 1.0}, "weights": {64: 1.0, 32: 1.0, 16: 1.0}}


@dataclass(frozen=True)
class Difference:
    """Distance of one tensor of a quantity from the reference's; `done` are the optimizer steps before it."""

    done: int
    stage: str
    quantity: str
    name: str
    value: float
    tolerance: float = 0.0

    @property
    def position(self) -> tuple[int, int, int]:
        return self.done, _STAGES.index(self.stage), QUANTITIES.index(self.quantity)

    @property
    def equal(self) -> bool:
        return self.value <= self.tolerance

    def __str__(self) -> str:
        kind = self.quantity.partition(" ")[0]
        is_next = kind == "steps" or (self.stage == "step" and kind != "buffers")
        where = f"in step {self.done + is_next}"
        if kind == "weights":
            where = f"after step {self.done}" if self.done else "before the first step"
        elif kind in ("validation", "test"):
            where = f"in the {kind} after step {self.done}"
        return f"{where}: {self.quantity}{self.name and f' of {self.name}'}, by {self.value:.1e}"


@dataclass(frozen=True)
class Comparison:
    """Result of two trainings."""

    sides: Sides
    differences: list[Difference]
    facts: dict[str, Any]  # the reference's; `said`: lines of the other side on what is not as on one process

    @property
    def first(self) -> Difference | None:
        """Return the tensor that differs most where the sides part first."""
        beyond = [one for one in self.differences if not one.equal]
        return min(beyond, key=lambda one: (one.position, -one.value), default=None)

    @property
    def equal(self) -> bool:
        return self.first is None

    @property
    def position(self) -> tuple[float, ...]:
        """Return how far the sides are equal."""
        return (math.inf,) if self.first is None else self.first.position


def compare(sides: Sides, train: Train) -> Comparison:
    """Train both sides, one after the other, and compare their records.

    Raises ConfigError if a side is refused, SideFailed if one fails, and NamedFailure if the reference ends early or diverges.
    """
    with TemporaryDirectory(prefix="lockstep-parity-") as folder:
        reference = _record(sides, REFERENCE, Path(folder, REFERENCE), train)
        steps, done = sides.other.parity.steps, reference["facts"]["steps"]
        if done < steps:
            fewer = f"; parity.steps={done} is the most" if done else ""
            raise NamedFailure(f"the reference has made {done} of {steps} steps, so there is no verdict{fewer}")
        for moment in reference["moments"]:
            if not all(weight["entries"].isfinite().all() for weight in moment["weights"].values()):
                raise NamedFailure(f"after step {moment['done']} the weights are not finite: there is nothing to compare")
        other = _record(sides, OTHER, Path(folder, OTHER), train)
    facts = reference["facts"] | {"said": other["facts"]["said"]}
    return Comparison(sides, [*_differences(sides, reference, other)], facts)


def _record(sides: Sides, name: str, folder: Path, train: Train) -> dict[str, Any]:
    folder.mkdir()
    train(sides.config(name, folder), folder)
    import torch

    return torch.load(folder / "record.pt", weights_only=True)


def _differences(sides: Sides, reference: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
    from lockstep.parity.sketches import difference

    so_far: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])  # the largest of a tensor, see `difference`
    for a, b in zip_longest(reference["moments"], other["moments"]):
        at = (a or b)["done"], (a or b)["stage"]
        if a is None or b is None or at != (b["done"], b["stage"]):
            yield Difference(*at, QUANTITIES[0], "", math.inf)
            return
        for quantity in (quantity for quantity in QUANTITIES if quantity in a or quantity in b):
            x, y, is_data = a.get(quantity, {}), b.get(quantity, {}), quantity.endswith("samples")
            if is_data and sides.exact:
                continue  # only the samples of a process's first virtual worker may be seen
            for name, one in x.items():
                for key in ((quantity, name), (quantity, "")):
                    so_far[key] = [*map(max, so_far[key], (one["largest"], one["norm"]))]
            least = [_AT_LEAST.get(quantity, {}).get(sides.bits, 0.0) * value for value in so_far[quantity, ""]]
            for name in x.keys() & y.keys() if is_data else dict.fromkeys([*x, *y]):
                one, two = x.get(name, x.get(name.partition(" of process ")[0])), y.get(name)
                value = difference(one, two, is_data or quantity == "buffers", *map(max, so_far[quantity, name], least))
                if quantity == "gradients" and not any(each and each["largest"] for each in (one, two)):
                    value = 0.0  # one that is missing counts as zero
                yield Difference(*at, quantity, name, value, _tolerance(sides, quantity, one or two or {}))


def _tolerance(sides: Sides, quantity: str, sketch: dict[str, Any]) -> float:
    if sides.exact:
        return 0.0
    if quantity == "learning rate" or quantity.endswith("samples"):
        return _SAME
    bits = 32 if quantity.endswith("metrics") else sketch["bits"] or 64  # a metric of targets in float32 is added up in float64
    return max(_TOLERATED[sides.bits], _STORED[bits] if sides.bits == 64 else 0.0)
