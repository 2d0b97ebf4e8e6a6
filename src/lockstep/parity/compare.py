"""Two sides are trained and compared. Imports no torch."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockstep.errors import NamedFailure
from lockstep.parity.comparison import Comparison, is_another_training
from lockstep.parity.processes import Processes, SideFailed
from lockstep.parity.sides import Findings, Role, Sides, as_one_process, for_steps

Parts = dict[str, tuple[Role, dict[str, Any]]]  # what each group does, and what is done to its training alone


class TooFewSteps(NamedFailure):
    """Training has ended before the steps that were asked for: there is no verdict on them."""


def compare(sides: Sides, processes: Processes, freely: bool = True) -> Comparison:
    """Trains both sides and the control, step by step from the reference's states, then `freely`. The control's drift is
    the largest of three: Adam amplifies rounding by chance, now more, now less.

    The gradient of a ReLU jumps where its input is zero: in float32 an input within rounding of it now and then falls on
    either side. So where nothing but gradients differ they are compared again in float64. Raises TooFewSteps where the
    reference ends early.
    """
    found = _compare(sides, processes, freely)
    if sides.bits != 32 or not sides.is_same_precision or {difference.quantity for difference in found.beyond} != {"gradients"}:
        return found
    steps = 1 + max(difference.step for difference in found.beyond)
    exact = _compare(sides.changed({"trainer.precision": "64-true"}, steps), processes, freely=False)
    return replace(found, at_kinks=exact.failure is None and not exact.differs("gradients"))  # it may be bound to float32


def _compare(sides: Sides, processes: Processes, freely: bool) -> Comparison:
    with TemporaryDirectory(prefix="comparison-", dir=processes.folder) as folder:
        train = partial(_train, sides, processes, Path(folder))
        try:
            stepwise = train({"reference": ("lead", {}), "other": ("follow", {}), "control": ("follow", {"permuted": 1})})
            reference, other, control = (stepwise[name] for name in ("reference", "other", "control"))
            if (done := reference.facts["steps"]) < sides.steps:
                fewer = f"; parity.steps={done} is the most" if done else ""
                raise TooFewSteps(f"the reference has made {done} of {sides.steps} steps, so there is no verdict{fewer}")
            imitated = is_another_training(control, sides.bits)
            differences, drift = list(other.differences), [] if imitated else list(control.differences)
            if freely:
                how = "noise" if imitated else "permuted"
                ends = train({"other": ("finish", {}), "control": ("finish", {how: 1}), "reference": ("finish", {how: 2})})
                third = train({"control": ("finish", {how: 3})})["control"]
                differences += ends["other"].differences
                drift += ends["control"].differences + ends["reference"].differences + third.differences
        except SideFailed as failure:
            return Comparison(sides, Findings([], {}), Findings([], {}), failure=failure)
    return Comparison(sides, Findings(differences, other.facts), Findings(drift, reference.facts), imitated=imitated)


def repeats(sides: Sides, processes: Processes) -> bool:
    """Does the reference, trained twice, come to the same bits?"""
    with TemporaryDirectory(prefix="comparison-", dir=processes.folder) as folder:
        found = _train(sides, processes, Path(folder), {"reference": ("lead", {}), "control": ("follow", {})})
    return all(difference.value == 0 for difference in found["control"].differences)


def in_larger_batches(sides: Sides, processes: Processes) -> Sides:
    """Accumulated batches are compared with one larger batch on one process, where no BatchNorm makes that another thing."""
    one = sides.reference.trainer
    if one.accumulate_grad_batches == 1 or processes.groups["control"].world_size > 1:
        return sides
    built = for_steps(sides.reference, sides.steps, processes.folder)
    if processes.run({"control": ("builds_batchnorm", built)})["control"]:
        return sides
    return replace(sides, reference=as_one_process(sides.reference, parts=1))


def _train(sides: Sides, processes: Processes, folder: Path, roles: Parts) -> dict[str, Findings]:
    """The groups in their roles, at the same time."""
    followers = tuple(name for name, (role, _) in roles.items() if role == "follow")
    jobs = {}
    for name, (role, interventions) in roles.items():
        cfg = for_steps(sides.other if name == "other" else sides.reference, sides.steps, folder)
        cfg.interventions.update(interventions)
        jobs[name] = ("train", cfg, role, (folder, followers, name))
    return processes.run(jobs)
