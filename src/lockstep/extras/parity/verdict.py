"""Verdict on a composed config: whether both sides are equal, and if not, why. Imports no torch.

Each cause is switched off on both sides, alone, and named if they then part later or not at all.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.console import join_first
from lockstep.errors import ConfigError, NamedFailure
from lockstep.extras.parity.comparison import Comparison, Train, compare
from lockstep.extras.parity.trainings import SideFailed, Sides, train
from lockstep.runs.validation import validated

log = logging.getLogger(__package__)
_OF_PRECISION = ("dtype", "Float", "Double", "float32", "float64", "Complex", "complex")  # words of torch's errors


def parity(cfg: DictConfig, say: Callable[[str], None] = print, train: Train = train) -> bool:
    """Compare a composed run with one on one process, print the verdict, and return whether they are equal.

    Raises what `compare` raises, and SideFailed if the other side fails for a reason that is not known.
    """
    validated(cfg)
    sides = Sides.of(cfg)
    say("\nagainst ".join(f"{plan}, {sides.other.trainer.precision}" for plan in reversed(sides.plans)))
    log.info("Training both, one after the other ...")
    try:
        comparison = compare(sides, train)
    except SideFailed as failure:  # a model may be bound to another precision
        is_bound = sides.bits == 64 and any(word in failure.reason for word in _OF_PRECISION)
        hint = " (in 64-true; try parity.precision=run)" if is_bound else ""
        raise SideFailed(failure.side, failure.reason + hint, failure.traceback) from None
    if comparison.failure is None:
        say("\n".join(["", *([] if comparison.equal else [comparison.table(), ""]), *_notes(comparison)]))
    if comparison.equal:
        say(f"Equal {_extent(comparison)}.")
        return True
    if sides.bits < 64 and not sides.exact and comparison.failure is None:  # training amplifies rounding, ReLUs have a boundary
        log.info("Training both in float64 ...")
        if (precise := _compare_with({"trainer.precision": "64-true"}, comparison, train)) is not None and precise.equal:
            say(f"Equal but for the rounding of {sides.other.trainer.precision}, as float64 shows, {_extent(comparison)}.")
            return True
    say("\n".join(_explanation(comparison, train)))
    return False


def _compare_with(values: dict[str, Any], comparison: Comparison, train: Train) -> Comparison | None:
    try:
        return compare(comparison.sides.changed(values), train)
    except (ConfigError, NamedFailure, SideFailed):  # they can't be set here
        return None


def _explanation(comparison: Comparison, train: Train) -> list[str]:
    """Return the lines of a verdict of inequality. Raises SideFailed for a failure of which no cause is known."""
    causes = [] if comparison.sides.exact else [*explain(comparison, train)]
    if comparison.failure is not None and not causes:
        raise comparison.failure
    lines = [f"Not equal: {comparison.failure}" if comparison.failure else f"Not equal, first {comparison.first}."]
    for cause, rest in causes:
        (name, _, remedy), left = cause.what.partition(": "), f"they still differ, first {rest.first}"
        lines.append(f"Why: {name}. With it switched off {'both are equal' if rest.equal else left}.\n     {remedy}.")
    lines += [] if causes and causes[-1][1].equal else ["Why: none of the causes known here."]
    lines += [f"Not as on one process: {line}." for line in comparison.facts["said"]]  # in the words of a run
    return [*lines, f"Compared {_extent(comparison)}."]


def _notes(comparison: Comparison) -> list[str]:
    """List what a verdict does not cover."""
    steps, batches = comparison.sides.other.parity.steps, comparison.facts["batches per epoch"]
    epoch = -(-(batches or 0) // comparison.sides.other.trainer.accumulate_grad_batches)
    compared = {(one.quantity, one.name) for one in comparison.differences}
    there = {quantity for quantity, _ in compared}
    untrained = sorted(name for quantity, name in compared if quantity == "weights" and ("gradients", name) not in compared)
    notes = {
        f"what comes later, since these {steps} steps end before the first epoch, of {epoch}, does": epoch > steps,
        f"what comes later, since it is not known whether the first epoch ends within these {steps} steps": batches is None,
        "the loss, which the model does not return": "loss" not in there,
        **{f"{stage}, since it logged nothing": f"{stage} metrics" not in there for stage in ("validation", "test")},
        f"parameters that had no gradient in any step ({join_first(untrained)})": bool(untrained),
    }
    return [f"Not compared: {what}." for what, applies in notes.items() if applies]


def _extent(comparison: Comparison) -> str:
    """Say how far a verdict holds."""
    step, epoch = comparison.sides.other.parity.steps, comparison.facts["epoch"] + 1
    return f"up to step {step}, in epoch {epoch}; what comes later was not compared"


@dataclass(frozen=True)
class Cause:
    """`what`: its name, a colon, and what to do. `applies`: returns whether it is worth two trainings. `switch`: values of both
    configs that switch it off, and leave other causes alone."""

    what: str
    applies: Callable[[Comparison], bool]
    switch: dict[str, Any]


def explain(comparison: Comparison, train: Train, tried: Sequence[Cause] = ()) -> Iterator[tuple[Cause, Comparison]]:
    """Yield each cause of the first difference, with the comparison after it is switched off too; none if none is known."""
    for cause in (cause for cause in CAUSES if cause not in tried and cause.applies(comparison)):
        log.info(f"Training without {cause.what.partition(':')[0]} ...")
        without = _compare_with(cause.switch, comparison, train)
        if without is not None and without.position > comparison.position:
            yield cause, without
            yield from () if without.equal else explain(without, train, (*tried, cause))
            return


def _callback(name: str, **arguments: Any) -> dict[str, Any]:
    return {f"callbacks.parity_{name}": {"_target_": f"{__package__}.switches.{name}"} | arguments}


def _configured(key: str, *values: Any) -> Callable[[Comparison], bool]:
    return lambda comparison: OmegaConf.select(comparison.sides.other, key, default=values[0]) not in values


def _in_step(comparison: Comparison) -> bool:
    return any(one.quantity in ("gradients", "loss") and not one.equal for one in comparison.differences)


def _first_in(*quantities: str) -> Callable[[Comparison], bool]:
    return lambda comparison: comparison.first is not None and comparison.first.quantity in quantities


def _is_sum(comparison: Comparison) -> bool:
    """Return whether each gradient, where the sides part, is the reference's over the number of processes."""
    one, many = (plan.data_parallel_size for plan in comparison.sides.plans)
    there = [each for each in comparison.differences if each.position == comparison.position and not each.equal]
    return _first_in("gradients")(comparison) and all(abs(each.value - (1 - one / many)) < 1e-2 for each in there)


_EVALUATED = ("validation samples", "test samples", "validation metrics", "test metrics")
_BY_ID = "what a sample gets depends on its process; draw it from (seed, epoch, id) by lockstep.counter_rng.random_bits"
CAUSES = (
    Cause(
        "unused parameters: DDP waits for their gradients; set trainer.strategy.find_unused_parameters=true, or take them out",
        lambda comparison: "find_unused_parameters" in getattr(comparison.failure, "traceback", ""),
        {"trainer.strategy.find_unused_parameters": True},
    ),
    Cause(
        "gradients that are sent in fewer bytes, or not at every step: leave trainer/communication at null",
        _configured("trainer.strategy.communication", None),
        {"trainer.strategy.communication": None},
    ),
    Cause(
        "BatchNorm without synchronisation: each process normalises by its own samples; set trainer.sync_batchnorm=true",
        _configured("trainer.sync_batchnorm", True),
        {"trainer.sync_batchnorm": True},
    ),
    Cause(
        "a loss that averages over an uneven tail: return its mean, or set datamodule.drop_last=true",
        lambda comparison: _configured("datamodule.drop_last", True, None)(comparison) and _in_step(comparison),
        {"datamodule.drop_last": True},
    ),
    Cause(
        f"augmentation drawn per rank: {_BY_ID}",
        lambda comparison: _configured("datamodule.augment", None)(comparison) and _first_in("samples")(comparison),
        {"datamodule.augment": None},
    ),
    Cause(
        "batches of unequal size in evaluation: sum over samples once, where a metric averages means or a sampler pads",
        _first_in(*_EVALUATED),
        {"trainer.limit_val_batches": 1, "trainer.limit_test_batches": 1},
    ),
    Cause(
        "a learning rate that depends on the number of processes: leave it out, and count a schedule's length in optimizer steps",
        _first_in("learning rate"),
        _callback("OneRate"),
    ),
    Cause(
        "a loss that is a sum over the batch: its gradients are averaged over processes; return a mean",
        _is_sum,
        _callback("WholeBatch"),
    ),
    Cause(
        "a net, a loss or a metric that sees the batch of its process alone: gather what samples need of each other (in-batch "
        "negatives, statistics, a mean over tokens) from all processes, and log a torchmetrics.Metric in the place of a maximum",
        lambda comparison: _in_step(comparison) or _first_in("buffers", "training metrics", *_EVALUATED)(comparison),
        _callback("WholeBatch"),
    ),
    Cause(
        "dropout drawn per rank: use lockstep.nets.Dropout, which counts a sample's mask from its id",
        _in_step,
        _callback("NoDropout"),
    ),
    Cause(f"noise drawn per rank: {_BY_ID}", lambda _: True, _callback("WholeBatch", draws=True)),
    Cause(
        "accumulated batches: what the model does in each of them depends on its process; take fewer, larger ones",
        _configured("trainer.accumulate_grad_batches", 1),
        {"trainer.accumulate_grad_batches": 1},
    ),
    Cause(
        "non-deterministic kernels: the same step, done twice, has other bits; set trainer.deterministic=true",
        _configured("trainer.deterministic", True),
        {"trainer.deterministic": True},
    ),
)
