"""What came of comparing two sides: the table, the tolerances, the verdict. Imports no torch."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lockstep.console import aligned
from lockstep.parity.sides import Difference, Findings, Sides

# Of one step from identical state, as max|a-b| / max|a|. Calibrated by the control, a permuted batch: over the models of
# benchmarks/parity.md its gradients differ by up to 4e-14 in float64, and by 1e-5 in float32 where no unit is at its kink.
ONE_STEP = {64: 1e-10, 32: 1e-3, 16: 1e-1}
# What a single step of the control may excuse, as ten times its own difference: rounding, but amplified by the model.
AMPLIFIED = {64: 1e-8, 32: 1e-3, 16: 1e-1}
# A number that is held in fewer bits than its training computes in, as Lightning's and torchmetrics' metrics are.
HELD = {32: 1e-5, 16: 1e-1}
# Where the control's loss differs by more within a single step it is another training, and tells nothing.
ANOTHER_TRAINING = {64: 1e-6, 32: 1e-4, 16: 1e-1}
ROUNDING = {64: 2.0**-52, 32: 2.0**-23, 16: 2.0**-8}  # of one operation: what a control that rounds alike is taken for
CONTROLS = 10.0  # the weights may drift this many times as far as the control's
SGD_64 = 1e-12  # nothing amplifies rounding in float64 with SGD: the weights then may drift this far at most
QUANTITIES = (
    "steps per epoch",
    "samples",
    "learning rate",
    "loss",
    "gradients",
    "buffers",
    "training metrics",
    "validation samples",
    "validation metrics",
    "test samples",
    "test metrics",
    "weights",
)


def is_another_training(control: Findings, bits: int) -> bool:
    """Does a control differ by more than rounding? As where the samples of a batch are not independent of its order."""
    losses = [difference.value for difference in control.differences if difference.quantity in ("loss", "steps per epoch")]
    return not all(value <= ANOTHER_TRAINING[bits] for value in losses)


@dataclass(frozen=True)
class Row:
    """The tensor of a quantity that lies closest to or furthest beyond its tolerance, over all steps."""

    quantity: str
    difference: float
    control: float
    tolerance: float

    @property
    def equal(self) -> bool:
        return self.difference <= self.tolerance


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two sides.

    `at_kinks`: the gradients that differ are those of units within rounding of their kink. `imitated`: the control with
    permuted batches was another training; its place has been taken by noise in the reference's gradients.
    """

    sides: Sides
    other: Findings
    control: Findings
    at_kinks: bool = False
    imitated: bool = False

    @cached_property
    def rows(self) -> list[Row]:
        found = [[d for d in self.other.differences if d.quantity == quantity] for quantity in QUANTITIES]
        return [max(map(self._row, of_one), key=_excess) for of_one in found if of_one]

    def _row(self, difference: Difference) -> Row:
        control, tolerance = self._control_of(difference), self.tolerance(difference)
        return Row(difference.quantity, difference.value, control, tolerance)

    def tolerance(self, difference: Difference) -> float:
        bits, quantity, control = self.sides.bits, difference.quantity, self._control_of(difference)
        if quantity == "learning rate" or (quantity.endswith("samples") and self.sides.is_same_precision):
            return ONE_STEP[64]  # no step has rounded these
        if quantity == "weights":
            most = CONTROLS * max(control, ROUNDING[bits])
            return min(most, SGD_64) if bits == 64 and self.other.facts["sgd"] else most
        held = HELD[difference.bits] if difference.bits < bits else 0.0
        return max(ONE_STEP[bits], held, min(CONTROLS * control, AMPLIFIED[bits]))

    def _control_of(self, difference: Difference) -> float:
        """The control's largest difference of this tensor; of any tensor where it is about weights, since drift is chance."""
        key = (difference.quantity, "" if difference.quantity == "weights" else difference.name)
        return self._controls.get(key, math.nan)

    @cached_property
    def _controls(self) -> dict[tuple[str, str], float]:
        largest: dict[tuple[str, str], float] = {}
        for d in self.control.differences:
            key = (d.quantity, "" if d.quantity == "weights" else d.name)
            largest[key] = max(largest.get(key, 0.0), d.value)
        return largest

    @property
    def equal(self) -> bool:
        return all(row.equal or (self.at_kinks and row.quantity == "gradients") for row in self.rows)

    def differs(self, *quantities: str) -> bool:
        return any(not row.equal for row in self.rows if row.quantity in quantities)

    @property
    def facts(self) -> dict[str, Any]:
        return self.other.facts

    @cached_property
    def beyond(self) -> list[Difference]:
        """What is not tolerated."""
        return [d for d in self.other.differences if not d.value <= self.tolerance(d)]

    @property
    def first(self) -> Difference | None:
        """Of the first step in which a quantity differs the tensor that does most; a gradient, if one does."""
        return min(self.beyond, key=lambda d: (d.step, d.quantity != "gradients", -d.value), default=None)

    @cached_property
    def rounding_alone(self) -> set[str]:
        """The parameters whose gradient is another one for each order of the samples, but not those where all are."""
        gradients = [d for d in self.control.differences if d.quantity == "gradients"]
        names = {d.name for d in gradients if not d.value <= AMPLIFIED[self.sides.bits]}
        return names if names < {d.name for d in gradients} else set()

    @property
    def is_drift_of_the_control(self) -> bool:
        """Is all that differs the weights, and these no more than they do in another order of the samples?"""
        weights = next((row for row in self.rows if row.quantity == "weights"), None)
        only_weights = {d.quantity for d in self.beyond} == {"weights"}
        return only_weights and weights is not None and weights.difference <= CONTROLS * weights.control

    @property
    def steps_needed(self) -> int:
        """To see what differs: the weights differ only in the end."""
        return self.sides.steps if self.first is None or self.first.quantity == "weights" else self.first.step + 1

    def table(self) -> str:
        head = ("quantity", "difference", "control", "tolerance", "")
        names = {"weights": f"weights after {self.sides.steps} steps"}
        cells = [
            (names.get(row.quantity, row.quantity), *(_number(value) for value in (row.difference, row.control, row.tolerance)))
            for row in self.rows
        ]
        verdicts = ["equal" if row.equal else "equal but at kinks" if self.at_kinks else "NOT EQUAL" for row in self.rows]
        return aligned([head, *((*row, verdict) for row, verdict in zip(cells, verdicts, strict=True))], right=True)


def _excess(row: Row) -> float:
    return math.inf if math.isnan(row.difference) else row.difference / row.tolerance


def _number(value: float) -> str:
    return "" if math.isnan(value) else "0" if value == 0 else f"{value:.1e}"
