"""Two sides are trained and compared. Imports no torch."""

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from lockstep.errors import NamedFailure
from lockstep.parity.comparison import Comparison, is_another_training
from lockstep.parity.processes import Call, Processes, SideFailed
from lockstep.parity.sides import Findings, Role, Rounding, Sides, as_one_process, for_steps

Parts = dict[str, tuple[Role, Rounding]]  # what each group does
_AS_IT_IS = Rounding("as it is")


class TooFewSteps(NamedFailure):
    """Training has ended before the steps that were asked for: there is no verdict on them."""


def compare(sides: Sides, processes: Processes) -> Comparison:
    """Trains both sides and the control, first step by step from the reference's states, then freely. The control's drift is
    the largest of three: Adam amplifies rounding by chance, now more, now less.

    The gradient of a ReLU jumps where its input is zero: in float32 an input within rounding of it now and then falls on
    either side. So where nothing but gradients differ they are compared again in float64. Raises SideFailed where a side
    raises, TooFewSteps where the reference ends early.
    """
    found = _compare(sides, processes)
    only_gradients = {difference.quantity for difference in found.beyond} == {"gradients"}
    if sides.bits != 32 or not sides.is_same_precision or not only_gradients:
        return found
    steps = 1 + max(difference.step for difference in found.beyond)
    try:
        exact = _compare(sides.changed({"trainer.precision": "64-true"}, {}, steps), processes)
    except SideFailed:  # a model may be bound to float32
        return found
    return replace(found, at_kinks=not exact.differs("gradients"))


def _compare(sides: Sides, processes: Processes) -> Comparison:
    folder = Path(mkdtemp(prefix="comparison-", dir=processes.folder))
    try:
        return _compared(sides, processes, folder)
    finally:
        shutil.rmtree(folder)


def _compared(sides: Sides, processes: Processes, folder: Path) -> Comparison:
    permuted = Rounding("permuted", 1)
    roles: Parts = {"reference": ("lead", _AS_IT_IS), "other": ("follow", _AS_IT_IS), "control": ("follow", permuted)}
    stepwise = _train(sides, processes, folder, roles)
    _check_steps(stepwise["reference"].facts["steps"], sides.steps)
    other, control = stepwise["other"], stepwise["control"]
    imitated = is_another_training(control, sides.bits)
    once, twice, again = (Rounding("imitated" if imitated else "permuted", number) for number in (1, 2, 3))
    freely: Parts = {"other": ("finish", _AS_IT_IS), "control": ("finish", once), "reference": ("finish", twice)}
    weights = _train(sides, processes, folder, freely)
    drifts = [
        weights["control"],
        weights["reference"],
        _train(sides, processes, folder, {"control": ("finish", again)})["control"],
    ]
    return Comparison(
        sides,
        Findings(other.differences + weights["other"].differences, other.facts),
        Findings(
            ([] if imitated else control.differences) + [d for found in drifts for d in found.differences],
            stepwise["reference"].facts,
        ),
        imitated=imitated,
    )


def _check_steps(done: int, wanted: int) -> None:
    if done < wanted:
        fewer = f"; parity.steps={done} is the most" if done else ""
        raise TooFewSteps(f"the reference has made {done} of {wanted} steps, so there is no verdict{fewer}")


def repeats(sides: Sides, processes: Processes) -> bool:
    """Does the reference, trained twice, come to the same bits?"""
    folder = Path(mkdtemp(prefix="comparison-", dir=processes.folder))
    twice = replace(sides, other=sides.reference)
    found = _train(twice, processes, folder, {"reference": ("lead", _AS_IT_IS), "control": ("follow", _AS_IT_IS)})
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


def _train(sides: Sides, processes: Processes, folder: Path, roles: Parts) -> dict[str, Findings]:
    """The groups in their roles, at the same time."""
    followers = tuple(name for name, (role, _) in roles.items() if role == "follow")
    jobs = {}
    for name, (role, rounding) in roles.items():
        cfg = for_steps(sides.other if name == "other" else sides.reference, sides.steps, folder)
        jobs[name] = Call("train", (cfg, role, (folder, followers, name), rounding, sides.interventions))
    return processes.run(jobs)
