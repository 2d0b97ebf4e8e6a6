"""Verdict on a composed config: whether both sides are equal, and if not, why. Imports no torch.

Each cause is switched off on both sides, alone, and named if they then differ later or not at all.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.console import join_first
from lockstep.errors import ConfigError, NamedFailure
from lockstep.parity.comparison import Comparison, Train, compare
from lockstep.parity.trainings import SideFailed, Sides, train
from lockstep.runs.validation import validated

log = logging.getLogger(__package__)


def parity(cfg: DictConfig, say: Callable[[str], None] = print, train: Train = train) -> bool:
    """Compare a composed run with one on one process, print the verdict, and return whether they are equal.

    Raises what `compare` raises.
    """
    validated(cfg)
    sides = Sides.of(cfg)
    say("\nagainst ".join(f"{plan}, {sides.other.trainer.precision}" for plan in reversed(sides.plans)))
    log.info("Training both, one after the other ...")
    comparison = compare(sides, train)
    say("\n".join(["", *_notes(comparison)]))
    say("\n".join([f"Equal {_extent(comparison)}."] if comparison.equal else _explanation(comparison, train)))
    return comparison.equal


def _explanation(comparison: Comparison, train: Train) -> list[str]:
    """Return the lines of a verdict of inequality."""
    causes = [] if comparison.sides.exact else [*explain(comparison, train)]
    lines = [f"Not equal, first {comparison.first}."]
    for cause, rest in causes:
        (name, _, fix), left = cause.what.partition(": "), f"they still differ, first {rest.first}"
        lines.append(f"Why: {name}. Without this cause {'both are equal' if rest.equal else left}.\n     {fix}.")
    lines += [] if causes and causes[-1][1].equal else ["Why: none of the causes known here; docs/your-code.md has others."]
    lines += [f"Differs from one process: {line}." for line in comparison.facts["said"]]  # in the words of a run
    return [*lines, f"Compared {_extent(comparison)}."]


def _notes(comparison: Comparison) -> list[str]:
    """List what a verdict does not cover."""
    compared = {(one.quantity, one.name) for one in comparison.differences}
    quantities = {quantity for quantity, _ in compared}
    untrained = sorted(name for quantity, name in compared if quantity == "weights" and ("gradients", name) not in compared)
    notes = {
        **{f"{stage}, not run or not logged": f"{stage} metrics" not in quantities for stage in ("validation", "test")},
        f"parameters that had no gradient in any step ({join_first(untrained)})": bool(untrained),
    }
    return [f"Not compared: {what}." for what, applies in notes.items() if applies]


def _extent(comparison: Comparison) -> str:
    """Say how far a verdict holds."""
    step, epoch = comparison.sides.other.parity.steps, comparison.facts["epoch"] + 1
    return f"up to step {step}, in epoch {epoch}; later steps were not compared"


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
        log.info(f"Training both again to test one possible cause: {cause.what.partition(':')[0]} ...")
        try:
            without = compare(comparison.sides.changed(cause.switch), train)
        except (ConfigError, NamedFailure, SideFailed):
            continue  # it can't be switched off here
        if without.position > comparison.position:
            yield cause, without
            yield from () if without.equal else explain(without, train, (*tried, cause))
            return


def _callback(name: str, **arguments: Any) -> dict[str, Any]:
    return {f"callbacks.parity_{name}": {"_target_": f"{__package__}.switches.{name}"} | arguments}


def _first_in(comparison: Comparison, *quantities: str) -> bool:
    return comparison.first is not None and comparison.first.quantity in quantities


def _depends_on_batch(comparison: Comparison) -> bool:
    in_step = any(one.quantity == "gradients" and not one.equal for one in comparison.differences)
    return in_step or _first_in(comparison, "buffers", "training metrics", *_EVALUATED)


def _is_sum(comparison: Comparison) -> bool:
    """Return whether each gradient, where the sides part, is the reference's over the number of processes."""
    one, many = (plan.data_parallel_size for plan in comparison.sides.plans)
    there = [each for each in comparison.differences if each.position == comparison.position and not each.equal]
    return _first_in(comparison, "gradients") and all(abs(each.value - (1 - one / many)) < 1e-2 for each in there)


_EVALUATED = ("validation samples", "test samples", "validation metrics", "test metrics")
CAUSES = (
    Cause(
        "BatchNorm without synchronisation: each process normalises by its own samples; set trainer.sync_batchnorm=true",
        lambda comparison: not OmegaConf.select(comparison.sides.other, "trainer.sync_batchnorm", default=True),
        {"trainer.sync_batchnorm": True},
    ),
    Cause(
        "batches of unequal size in evaluation: sum over samples once, where a metric averages means or a sampler pads",
        lambda comparison: _first_in(comparison, *_EVALUATED),
        {"trainer.limit_val_batches": 1, "trainer.limit_test_batches": 1},
    ),
    Cause(
        "a learning rate that depends on the number of processes: leave it out, and count a schedule's length in optimizer steps",
        lambda comparison: _first_in(comparison, "learning rate"),
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
        _depends_on_batch,
        _callback("WholeBatch"),
    ),
    Cause(
        "noise drawn per rank: what a sample gets depends on its process; use lockstep.nets.Dropout, or draw by lockstep.noise",
        lambda _: True,
        _callback("WholeBatch", draws=True),
    ),
)
