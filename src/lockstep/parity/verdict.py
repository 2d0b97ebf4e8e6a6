"""From a composed config to what a person is told. Imports no torch."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import DictConfig

from lockstep.config.plan import Plan
from lockstep.parity.causes import Cause, Evidence, causes_of
from lockstep.parity.compare import Comparison, compare, in_larger_batches
from lockstep.parity.processes import Processes, SideFailed
from lockstep.parity.sides import Sides
from lockstep.runs.validation import validated

_DRIFT = (
    "Why: rounding, which this training amplifies: the control's weights drift as far, by the order of the samples alone.\n"
    "     Take a lower learning rate or fewer parity.steps."
)


def parity(compose: Callable[[list[str]], DictConfig], say: Callable[[str], None] = print) -> bool:
    """Compares the run that `compose([])` gives with its reference, says what came of it; are they equal?

    `compose` takes more overrides. Raises ConfigError for what can't be compared so, SideFailed where the reference fails,
    or the other side for a reason that is not known.
    """

    def checked(more: list[str]) -> DictConfig:
        cfg = compose(more)
        validated(cfg)
        return cfg

    cfg = checked([])
    sides = Sides.of(cfg, checked)
    with TemporaryDirectory(prefix="lockstep-parity-") as folder, Processes(sides.groups(), Path(folder)) as processes:
        if cfg.parity.against == "one":
            sides = in_larger_batches(sides, processes)
        say(f"{described(sides.other)}\nagainst {described(sides.reference)}")
        evidence = examine(sides, processes)
        if evidence.comparison is not None:
            say(f"\n{evidence.comparison.table()}\n")
            if evidence.configured("datamodule.drop_last") is not True and not evidence.fact("whole epoch"):
                say(f"An epoch has more than these {sides.steps} steps: what only its last batch would show was not compared.")
            if evidence.comparison.equal:
                say("Equal.")
                return True
        causes = causes_of(evidence, processes)
        if evidence.failure is not None and not causes:
            raise evidence.failure
        say(verdict(evidence, causes))
    return False


def examine(sides: Sides, processes: Processes) -> Evidence:
    """Compares, or learns how a side fails."""
    try:
        return Evidence(sides, compare(sides, processes), None)
    except SideFailed as failure:
        return Evidence(sides, None, failure)


def described(cfg: DictConfig) -> str:
    return f"{Plan.of(cfg)}, {cfg.trainer.precision}"


def verdict(evidence: Evidence, causes: list[Cause]) -> str:
    """Where they differ first, and why where that is known."""
    if evidence.comparison is not None:
        lines = [f"Not equal, first {first_difference(evidence.comparison)}."]
    else:
        lines = [f"Not equal: {evidence.failure}"]
    it = "it" if len(causes) == 1 else "all of these"
    lines += [f"Why: {cause.name}. With {it} switched off both are equal.\n     {cause.remedy}." for cause in causes]
    if causes:
        return "\n".join(lines)
    if evidence.comparison is not None and evidence.comparison.is_drift_of_the_control:
        return "\n".join([*lines, _DRIFT])
    return "\n".join([*lines, "Why: none of the causes known here."])


def first_difference(comparison: Comparison) -> str:
    first = comparison.first
    assert first is not None
    where = {"weights": f"after step {first.step}", "validation metrics": f"in the validation after step {first.step}"}
    name = f" of {first.name}" if first.name else ""
    return f"{where.get(first.quantity, f'in step {first.step}')}: {first.quantity}{name}, by {first.value:.1e}"
