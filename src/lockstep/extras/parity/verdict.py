"""From a composed config to what is said to a person. Imports no torch."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.console import join_first
from lockstep.extras.parity.comparison import Comparison, compare, in_larger_batches
from lockstep.extras.parity.processes import Processes, SideFailed
from lockstep.extras.parity.sides import AT_THE_END, Sides
from lockstep.runs.validation import validated

log = logging.getLogger(__name__)
_DRIFT = (
    "Why: rounding, which this training amplifies: the control's weights drift as far, by the order of the samples alone.\n"
    "     Take a lower learning rate or fewer parity.steps."
)
_UNKNOWN = "Why: none of the causes known here."


@dataclass(frozen=True)
class Explanation:
    """Why two sides differ: `causes`, the name and the remedy of each, and the comparison with all of them switched off, which is
    None if both sides are then equal."""

    causes: Sequence[tuple[str, str]]
    rest: Comparison | None


def parity(
    compose: Callable[[list[str]], DictConfig],
    say: Callable[[str], None] = print,
    processes: Processes | None = None,
) -> bool:
    """Compares the run that `compose([])` gives with its reference, and says what came of it. Returns whether they are equal.

    `compose` takes more overrides; `processes` are started if none are given. Raises ConfigError for what can't be compared so,
    TooFewSteps if training ends early, SideFailed if the reference fails, or the other side for a reason that is not known.
    """

    def checked(more: list[str]) -> DictConfig:
        cfg = compose(more)
        validated(cfg)
        return cfg

    cfg = checked([])
    sides = Sides.of(cfg, checked)
    with ExitStack() as stack:
        if processes is None:
            folder = stack.enter_context(TemporaryDirectory(prefix="lockstep-parity-"))
            started = Processes(sides.processes, Path(folder), cfg.parity.timeout, fresh=sides.has_micro_batches)
            processes = stack.enter_context(started)
        if cfg.parity.against == "one":
            sides = in_larger_batches(sides, processes)
        say("\nagainst ".join(f"{Plan.from_config(side)}, {side.trainer.precision}" for side in (sides.other, sides.reference)))
        log.info("Comparing step by step ...")
        comparison = compare(sides, processes)
        if comparison.failure is None:
            say("\n".join(["", comparison.table(), "", *notes(comparison)]))
        if comparison.equal:
            say(f"Equal {_extent(comparison)}.")
            return True
        if comparison.sides.has_micro_batches and comparison.failure is None:
            say(f"Not equal, first {_where(comparison)}.\nCompared {_extent(comparison)}.")
            return False
        explain = OmegaConf.select(cfg, "parity.explain")
        explanations = get_method(explain)(comparison, processes) if explain else []
    if comparison.failure is not None and not explanations:
        raise _with_hint(comparison.failure, cfg)
    say(verdict(comparison, explanations))
    return False


def _with_hint(failure: SideFailed, cfg: DictConfig) -> SideFailed:
    """A model may be bound to its precision: what it raises in another says so."""
    types = ("dtype", "Float", "Double", "float32", "float64", "Complex", "complex")
    if cfg.parity.precision == "run" or not any(word in str(failure) for word in types):
        return failure
    return SideFailed(failure.side, f"{failure.traceback.rstrip()} (in {cfg.parity.precision}; try parity.precision=run)")


def notes(comparison: Comparison) -> list[str]:
    """What a verdict does not rest on."""
    lines = [f"Not compared: {what}." for what in not_compared(comparison)]
    if comparison.imitated:
        lines.append(
            "The control: batches in another order are another training here, so the rounding of its gradients is imitated."
        )
    return [*lines, ""] if lines else []


def not_compared(comparison: Comparison) -> list[str]:
    facts, steps = comparison.control.facts, comparison.sides.steps
    batches = facts["batches per epoch"]
    epoch = None if batches is None else -(-batches // comparison.sides.reference.trainer.accumulate_grad_batches)
    which = "any step" if facts["losses"] == 0 else "some steps"
    parts = {
        f"what comes later, since these {steps} steps end before the first epoch, of {epoch}, does": (epoch or 0) > steps,
        f"what comes later, since it is not known whether the first epoch ends within these {steps} steps": epoch is None,
        f"the loss of {which}, which the model does not return; gradients and weights are": facts["no loss"],
        "validation, since none ran": "validation" not in facts["ran"],
        "test, since none ran": "test" not in facts["ran"],
    }
    names = {
        "parameters that had no gradient in any step": facts["untrained"],
        "parameters whose gradients are rounding alone, as those of a bias before a norm": comparison.rounding_alone,
        "what is logged at single steps, by process 0": facts["logged per step"],
        "state that is no tensor": facts["not tensors"],
        "samples, by tensors of several shapes, as padded ones have": comparison.other.facts["samples left out"],
    }
    listed = [f"{what} ({join_first(sorted(tensors))})" for what, tensors in names.items() if tensors]
    return [what for what, applies in parts.items() if applies] + listed


def verdict(comparison: Comparison, explanations: Sequence[Explanation]) -> str:
    """Says where they differ first, and why where that is known; then the same of what is left with that switched off."""
    lines = [f"Not equal: {comparison.failure}" if comparison.failure is not None else f"Not equal, first {_where(comparison)}."]
    rest: Comparison | None = comparison
    for explanation in explanations:
        it, rest = "it" if len(explanation.causes) == 1 else "all of these", explanation.rest
        left = "both are equal" if rest is None else f"they still differ, first {_where(rest)}"
        lines += [f"Why: {name}. With {it} switched off {left}.\n     {remedy}." for name, remedy in explanation.causes]
    if rest is not None:
        lines.append(_DRIFT if rest.is_drift else _UNKNOWN)
    lines += [f"Not as on one process: {line}." for line in comparison.facts.get("said", ())]  # in the words of a run
    if comparison.failure is None:
        lines.append(f"Compared {_extent(comparison)}.")
    return "\n".join(lines)


def _where(comparison: Comparison) -> str:
    """How a side fails, or the first difference."""
    if (first := comparison.first) is None:
        return str(comparison.failure)
    where = f"in step {first.step}"
    if first.quantity in AT_THE_END:
        where = f"after step {first.step}"
    elif first.quantity.startswith(("validation", "test")):
        where = f"in the {first.quantity.split()[0]} after step {first.step}"
    name = f" of {first.name}" if first.name else ""
    return f"{where}: {first.quantity}{name}, by {first.value:.1e}"


def _extent(comparison: Comparison) -> str:
    """How far a verdict holds. Steps and epochs are counted from 0."""
    step, epoch = comparison.sides.steps - 1, comparison.control.facts["epoch"]
    return f"up to step {step}, in epoch {epoch}; what comes later was not compared"
