"""One comparison of two sides: the table, the tolerances, the verdict. Imports no torch."""

import math
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from lockstep.console import aligned
from lockstep.parity.processes import Call, Processes, SideFailed
from lockstep.parity.sides import Difference, Findings, Role, Sides, as_one_process, for_steps

# Of one step from identical state, as max|a-b| / max|a|. Calibrated by the control, a permuted batch: over the models of
# benchmarks/parity.md its gradients differ by up to 4e-14 in float64, and by 1e-5 in float32 where no unit is at its kink.
ONE_STEP = {64: 1e-10, 32: 1e-3, 16: 1e-1}
ROUNDING = {64: 2.0**-52, 32: 2.0**-23, 16: 2.0**-8}  # of one operation: what a control that rounds alike is taken for
CONTROLS = 10.0  # the weights may drift this many times as far as the control's
SGD_64 = 1e-12  # nothing amplifies rounding in float64 with SGD: the weights then may drift this far at most
QUANTITIES = (
    "steps per epoch",
    "samples",
    "learning rate",
    "loss",
    "gradients",
    "BatchNorm statistics",
    "validation metrics",
    "weights",
)


@dataclass(frozen=True)
class Row:
    """A quantity's largest difference over all steps and tensors, the control's, and what is tolerated."""

    quantity: str
    difference: float
    control: float
    tolerance: float

    @property
    def equal(self) -> bool:
        return self.difference <= self.tolerance


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two sides."""

    sides: Sides
    other: Findings
    control: Findings
    at_kinks: bool = False  # the gradients that differ are those of units within rounding of their kink

    @cached_property
    def rows(self) -> list[Row]:
        found = [quantity for quantity in QUANTITIES if any(d.quantity == quantity for d in self.other.differences)]
        return [self._row(quantity) for quantity in found]

    def _row(self, quantity: str) -> Row:
        control = _worst(self.control, quantity)
        return Row(quantity, _worst(self.other, quantity), control, self._tolerance(quantity, control))

    def _tolerance(self, quantity: str, control: float) -> float:
        bits = self.sides.bits
        if quantity == "learning rate" or (quantity == "samples" and self.sides.is_same_precision):
            return ONE_STEP[64]  # no step has rounded these
        if quantity != "weights":
            return ONE_STEP[bits]
        most = CONTROLS * max(control, ROUNDING[bits])
        return min(most, SGD_64) if bits == 64 and self.other.facts["sgd"] else most

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
        tolerances = {row.quantity: row.tolerance for row in self.rows}
        return [d for d in self.other.differences if not d.value <= tolerances[d.quantity]]

    @property
    def first(self) -> Difference | None:
        """Of the first step in which a quantity differs the tensor that does most; a gradient, if one does."""
        return min(self.beyond, key=lambda d: (d.step, d.quantity != "gradients", -d.value), default=None)

    @cached_property
    def rounding_alone(self) -> set[str]:
        """The parameters whose gradient is another one for each order of the samples, but not those where all are."""
        gradients = [d for d in self.control.differences if d.quantity == "gradients"]
        names = {d.name for d in gradients if not d.value <= ONE_STEP[self.sides.bits]}
        return names if names < {d.name for d in gradients} else set()

    @property
    def is_drift_of_the_control(self) -> bool:
        """Is all that differs the weights, and these no more than they do in another order of the samples?"""
        weights = next(row for row in self.rows if row.quantity == "weights")
        return {d.quantity for d in self.beyond} == {"weights"} and weights.difference <= CONTROLS * weights.control

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


def compare(sides: Sides, processes: Processes) -> Comparison:
    """Trains both sides and the control, first step by step from the reference's states, then freely. The control's drift is
    the largest of three permutations: Adam amplifies rounding by chance, now more, now less.

    The gradient of a ReLU jumps where its input is zero: in float32 an input within rounding of it now and then falls on
    either side. So where nothing but gradients differ they are compared again in float64. Raises SideFailed where a side raises.
    """
    found = _compare(sides, processes)
    only_gradients = {difference.quantity for difference in found.beyond} == {"gradients"}
    if sides.bits != 32 or not sides.is_same_precision or not only_gradients:
        return found
    steps = 1 + max(difference.step for difference in found.beyond)
    try:
        exact = _compare(sides.changed({"trainer.precision": "64-true"}, frozenset(), steps), processes)
    except SideFailed:  # a model may be bound to float32
        return found
    return replace(found, at_kinks=not exact.differs("gradients"))


def _compare(sides: Sides, processes: Processes) -> Comparison:
    folder = Path(mkdtemp(prefix="comparison-", dir=processes.folder))
    stepwise = _train(sides, processes, folder, {"reference": ("lead", 0), "other": ("follow", 0), "control": ("follow", 1)})
    freely = _train(sides, processes, folder, {"other": ("finish", 0), "control": ("finish", 1), "reference": ("finish", 2)})
    once_more = _train(sides, processes, folder, {"control": ("finish", 3)})
    shutil.rmtree(folder)
    other, control = stepwise["other"], stepwise["control"]
    permuted = [freely["control"], freely["reference"], once_more["control"]]
    return Comparison(
        sides,
        Findings(other.differences + freely["other"].differences, other.facts),
        Findings(control.differences + [d for found in permuted for d in found.differences], control.facts),
    )


def repeats(sides: Sides, processes: Processes) -> bool:
    """Does the reference, trained twice, come to the same bits?"""
    folder = Path(mkdtemp(prefix="comparison-", dir=processes.folder))
    twice = replace(sides, other=sides.reference)
    found = _train(twice, processes, folder, {"reference": ("lead", 0), "control": ("follow", 0)})
    return all(difference.value == 0 for difference in found["control"].differences)


def in_larger_batches(sides: Sides, processes: Processes) -> Sides:
    """Accumulated batches are compared with one larger batch on one process, where no BatchNorm makes that another thing."""
    one = sides.reference.trainer
    if one.accumulate_grad_batches == 1 or processes.groups["control"].world_size > 1:
        return sides
    built = for_steps(sides.reference, sides.steps, processes.folder)
    if processes.run({"control": Call("builds_batchnorm", (built,))})["control"]:
        return sides
    return replace(sides, reference=as_one_process(sides.reference, parts=1))


def _train(sides: Sides, processes: Processes, folder: Path, roles: dict[str, tuple[Role, int]]) -> dict[str, Findings]:
    """The groups in their roles, at the same time, with their batches in the order of a permutation, 0 for none."""
    followers = tuple(name for name, (role, _) in roles.items() if role == "follow")
    jobs = {}
    for name, (role, permutation) in roles.items():
        cfg = for_steps(sides.other if name == "other" else sides.reference, sides.steps, folder)
        jobs[name] = Call("train", (cfg, role, (folder, followers, name), permutation, sides.interventions))
    return processes.run(jobs)


def _worst(found: Findings, quantity: str) -> float:
    return max((d.value for d in found.differences if d.quantity == quantity), default=math.nan)


def _number(value: float) -> str:
    return "" if math.isnan(value) else "0" if value == 0 else f"{value:.1e}"
