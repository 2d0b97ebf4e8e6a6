"""Two sides are trained and compared, and what came of it: the table, the tolerances, the verdict. Imports no torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockstep.config.plan import Plan
from lockstep.console import aligned
from lockstep.errors import NamedFailure
from lockstep.extras.parity import tolerances
from lockstep.extras.parity.processes import Processes, Roles, SideFailed, train_once, train_sides
from lockstep.extras.parity.sides import AT_THE_END, Difference, Findings, Sides, as_one_process

Train = Callable[[Roles], dict[str, Findings]]

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
    *AT_THE_END,
)


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

    @property
    def beyond(self) -> float:
        """How many times the tolerance; what may differ by any amount is not beyond it."""
        return 0.0 if self.equal and math.isinf(self.tolerance) else self.difference / (self.tolerance or 1.0)


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two sides.

    `at_relu_boundaries`: the gradients that differ are those of units within rounding of the boundary of their ReLU. `imitated`:
    the control with permuted batches was another training; its place has been taken by noise in the reference's gradients.
    `failure`: a side failed, and nothing was compared.
    """

    sides: Sides
    other: Findings
    control: Findings
    at_relu_boundaries: bool = False
    imitated: bool = False
    failure: SideFailed | None = None

    def extended(self, other: list[Difference], control: list[Difference]) -> "Comparison":
        """Returns the comparison with more differences of both."""
        other, control = self.other.differences + other, self.control.differences + control
        return replace(self, other=Findings(other, self.other.facts), control=Findings(control, self.control.facts))

    @property
    def plan(self) -> Plan:
        """Returns the plan of the side that is to equal the reference."""
        return Plan.from_config(self.sides.other)

    @property
    def reference_plan(self) -> Plan:
        return Plan.from_config(self.sides.reference)

    @property
    def facts(self) -> dict[str, Any]:
        return self.other.facts

    @cached_property
    def rows(self) -> list[Row]:
        quantities = [[d for d in self._compared if d.quantity == quantity] for quantity in QUANTITIES]
        return [max(map(self._row, tensors), key=lambda row: row.beyond) for tensors in quantities if tensors]

    def _row(self, difference: Difference) -> Row:
        bits, quantity, control = self.sides.bits, difference.quantity, self._controls.get(_key(difference), math.nan)
        if quantity == "learning rate" or (quantity.endswith("samples") and self.sides.is_same_precision):
            tolerance = tolerances.ONE_STEP[64]  # no step has rounded these
        elif self.sides.tolerance is not None:
            tolerance = self.sides.tolerance
        elif quantity == "weights":
            tolerance = self._drift
        elif quantity in AT_THE_END:
            tolerance = max(self._drift, tolerances.CONTROLS * control)
        else:
            held = tolerances.HELD[difference.bits] if difference.bits < bits else 0.0
            tolerance = max(tolerances.ONE_STEP[bits], held, min(tolerances.CONTROLS * control, tolerances.AMPLIFIED[bits]))
        return Row(quantity, difference.value, control, tolerance)

    @property
    def _drift(self) -> float:
        """How far weights may have come to lie from each other."""
        bits = self.sides.bits
        drift = tolerances.CONTROLS * max(self._controls.get(("weights", ""), math.nan), tolerances.ROUNDING[bits])
        return min(drift, tolerances.SGD_64) if bits == 64 and self.facts["sgd"] else drift

    @cached_property
    def _controls(self) -> dict[tuple[str, str], float]:
        """The control's largest difference of each tensor that counts."""
        largest: dict[tuple[str, str], float] = {}
        for difference in filter(self._counts, self.control.differences):
            largest[_key(difference)] = max(largest.get(_key(difference), 0.0), difference.value)
        return largest

    @cached_property
    def _compared(self) -> list[Difference]:
        return list(filter(self._counts, self.other.differences))

    def _counts(self, difference: Difference) -> bool:
        """Gradients of rounding alone do not count, nor does what an optimizer makes of them, nor a loss that no step returns."""
        if difference.quantity == "loss" and self.control.facts.get("losses") == 0:
            return False
        return difference.quantity not in ("gradients", "weights") or difference.name not in self.rounding_alone

    @property
    def equal(self) -> bool:
        return self.failure is None and all(
            row.equal or (self.at_relu_boundaries and row.quantity == "gradients") for row in self.rows
        )

    def differs(self, *quantities: str) -> bool:
        return any(not row.equal for row in self.rows if row.quantity in quantities)

    @cached_property
    def beyond(self) -> list[Difference]:
        """What is not tolerated."""
        return [difference for difference in self._compared if not self._row(difference).equal]

    @property
    def first(self) -> Difference | None:
        """Returns the tensor that differs most in the first step in which a quantity does; a gradient, if one does."""
        return min(self.beyond, key=lambda d: (d.step, d.quantity != "gradients", -d.value), default=None)

    @cached_property
    def rounding_alone(self) -> set[str]:
        """The parameters without effect, as a bias before a norm is: whose gradient is another one for each order of the
        samples, and on both sides, in every step, nothing beside the largest of all."""
        gradients = [[d for d in side.differences if d.quantity == "gradients"] for side in (self.other, self.control)]
        largest: dict[int, float] = {}
        for d in (*gradients[0], *gradients[1]):
            largest[d.step] = max(largest.get(d.step, 0.0), d.size)
        sizable = {
            d.name
            for side in gradients
            for d in side
            if not d.size <= tolerances.NOTHING_BESIDE[self.sides.bits] * largest[d.step]
        }
        return {d.name for d in gradients[1] if not d.value <= tolerances.AMPLIFIED[self.sides.bits]} - sizable

    @property
    def only_the_end_differs(self) -> bool:
        """Are all single steps equal, and is what they lead to not?"""
        return bool(self.beyond) and {difference.quantity for difference in self.beyond} <= {*AT_THE_END}

    @property
    def is_drift(self) -> bool:
        """Is all that differs what training leads to, and that no more than in another order of the samples?"""
        rows = [row for row in self.rows if row.quantity in AT_THE_END]
        return self.only_the_end_differs and all(
            row.difference <= tolerances.CONTROLS * row.control for row in rows if not row.equal
        )

    @property
    def steps_needed(self) -> int:
        """Returns how many steps it takes to see what differs."""
        return self.sides.steps if self.first is None or self.only_the_end_differs else self.first.step + 1

    def table(self) -> str:
        cells = [("quantity", "difference", "control", "tolerance", "")]
        for row in self.rows:
            name = f"{row.quantity.split()[0]} after {self.sides.steps} steps" if row.quantity in AT_THE_END else row.quantity
            verdict = "equal" if row.equal else "equal but at ReLU boundaries" if self.at_relu_boundaries else "NOT EQUAL"
            cells.append((name, _number(row.difference), _number(row.control), _number(row.tolerance), verdict))
        return aligned(cells, right=True)


def _key(difference: Difference) -> tuple[str, str]:
    """Returns what identifies the control's: of any tensor if it is about weights, since drift is chance."""
    return difference.quantity, "" if difference.quantity == "weights" else difference.name


def _number(value: float) -> str:
    return "" if math.isnan(value) else "0" if value == 0 else f"{value:.1e}"


def is_another_training(control: Findings, bits: int) -> bool:
    """Does a control differ by more than rounding? As where the samples of a batch are not independent of its order."""
    losses = [difference.value for difference in control.differences if difference.quantity in ("loss", "steps per epoch")]
    return not all(value <= tolerances.ANOTHER_TRAINING[bits] for value in losses)


class TooFewSteps(NamedFailure):
    """Training has ended before the steps that were asked for: there is no verdict on them."""


def compare(sides: Sides, processes: Processes, freely: bool = True) -> Comparison:
    """Trains both sides and the control, step by step from the reference's states; then `freely`, if all steps are equal.

    The gradient of a ReLU jumps at its boundary, where its input is zero: in float32 an input within rounding of it now and then
    falls on either side. So if nothing but gradients differ they are compared again in float64. Raises TooFewSteps if the
    reference ends early.
    """
    with TemporaryDirectory(prefix="comparison-", dir=processes.folder) as folder:
        train = partial(train_sides, sides, processes, Path(folder))
        try:
            result = _step_by_step(sides, train)
            if (
                sides.tolerance is None
                and sides.bits == 32
                and sides.is_same_precision
                and {one.quantity for one in result.beyond} == {"gradients"}
            ):
                steps = 1 + max(difference.step for difference in result.beyond)
                exact = compare(sides.changed({"trainer.precision": "64-true"}, steps), processes, freely=False)
                is_equal = exact.failure is None and not exact.differs("gradients")  # it may be bound to float32
                result = replace(result, at_relu_boundaries=is_equal)
            return _to_the_end(result, train) if freely and result.equal else result
        except SideFailed as failure:
            return Comparison(sides, Findings([], {}), Findings([], {}), failure=failure)


def _step_by_step(sides: Sides, train: Train) -> Comparison:
    roles: Roles = {"reference": ("lead", {}), "other": ("follow", {})}
    control_role: Roles = {"control": ("follow", {"permuted": 1})}
    findings = train(roles if sides.tolerance is not None else roles | control_role)
    reference, other, control = (findings.get(name, Findings([], {})) for name in ("reference", "other", "control"))
    if (done := reference.facts["steps"]) < sides.steps:
        fewer = f"; parity.steps={done} is the most" if done else ""
        raise TooFewSteps(f"the reference has made {done} of {sides.steps} steps, so there is no verdict{fewer}")
    imitated = is_another_training(control, sides.bits)
    return Comparison(sides, other, Findings([] if imitated else control.differences, reference.facts), imitated=imitated)


def _to_the_end(result: Comparison, train: Train) -> Comparison:
    """The control's drift is the larger of two, of three if that is not enough: Adam amplifies rounding by chance, now more, now
    less."""
    if result.sides.tolerance is not None:
        return result.extended(train({"other": ("finish", {})})["other"].differences, [])
    how = "noise" if result.imitated else "permuted"
    ends = train({"other": ("finish", {}), "control": ("finish", {how: 1}), "reference": ("finish", {how: 2})})
    drift = ends["control"].differences + ends["reference"].differences
    result = result.extended(ends["other"].differences, drift)
    return result if result.equal else result.extended([], train({"control": ("finish", {how: 3})})["control"].differences)


def in_larger_batches(sides: Sides, processes: Processes) -> Sides:
    """Accumulated batches are compared with one larger batch on one process, unless something makes that another thing:
    BatchNorm, or any state that changes with each batch."""
    one = Plan.from_config(sides.reference)
    if one.accumulate_grad_batches == 1 or one.world_size > 1 or one.global_batch_size is None:
        return sides
    facts = train_once(replace(sides, steps=1), processes, {"control": ("alone", {})})["control"].facts
    if facts["batchnorm"] or facts["changes with each batch"]:
        return sides
    return replace(sides, reference=as_one_process(sides.reference, parts=1))
