"""What may make two sides differ. A cause is suspected by a cheap symptom, and named only if switching it off helps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.parity.compare import Comparison, compare, repeats
from lockstep.parity.processes import Processes, SideFailed
from lockstep.parity.sides import LR, NO_DROPOUT, Sides, frozen


@dataclass(frozen=True)
class Evidence:
    """What is known when a cause is looked for: the sides, what comparing them gave, or how a side failed."""

    sides: Sides
    comparison: Comparison | None
    failure: SideFailed | None

    def differs(self, *quantities: str) -> bool:
        return self.comparison is not None and self.comparison.differs(*quantities)

    def fact(self, name: str) -> Any:
        return self.comparison.facts[name] if self.comparison is not None else None

    @property
    def rounding_alone(self) -> set[str]:
        return self.comparison.rounding_alone if self.comparison is not None else set()

    def configured(self, key: str) -> Any:
        return OmegaConf.select(self.sides.other, key)

    def says(self, words: str) -> bool:
        return self.failure is not None and any(words in text for text in self.failure.tracebacks)

    @property
    def is_distributed(self) -> bool:
        return Plan.of(self.sides.other).world_size > 1


@dataclass(frozen=True)
class Cause:
    """A name, its symptom, what switches it off (values of both configs, a intervention), and what to do about it."""

    name: str
    is_suspected: Callable[[Evidence], bool]
    remedy: str
    switch: Callable[[Evidence], dict[str, Any]] = lambda _: {}
    interventions: Callable[[Evidence], set[str]] = lambda _: set()


def _equal_validation_batches(evidence: Evidence) -> dict[str, Any]:
    """A batch size and a number of validation batches with which every batch of every process has as many samples."""
    plan, length = Plan.of(evidence.sides.other), evidence.fact("validation")
    size = max(1, min(plan.batch_size, length // plan.world_size))
    total = size * plan.world_size
    batches = {"datamodule.batch_size": size, "datamodule.global_batch_size": total} | {"trainer.accumulate_grad_batches": 1}
    return batches | {"trainer.limit_val_batches": length // total}


CAUSES = (
    Cause(
        "BatchNorm without synchronisation",
        lambda e: e.is_distributed and e.fact("batchnorm") and not e.configured("trainer.sync_batchnorm"),
        "each process normalises by its own samples; set trainer.sync_batchnorm=true",
        lambda _: {"trainer.sync_batchnorm": True},
    ),
    Cause(
        "a loss that averages over an uneven tail",
        lambda e: e.configured("datamodule.drop_last") is False and e.differs("gradients", "loss"),
        "processes with fewer samples count as much; return (losses.sum() * batch.loss_weight), or set datamodule.drop_last=true",
        lambda _: {"datamodule.drop_last": True},
    ),
    Cause(
        "dropout drawn per rank",
        lambda e: bool(e.fact("draws")) and e.differs("gradients", "loss"),
        "a sample's mask depends on its process; use lockstep.nets.Dropout, which counts it from the sample",
        interventions=lambda _: {NO_DROPOUT},
    ),
    Cause(
        "augmentation drawn per rank",
        lambda e: e.configured("datamodule.augment") is not None and e.differs("samples"),
        "a sample's augmentation depends on its process; draw it from (seed, epoch, id) by lockstep.counter_rng.random_bits",
        lambda _: {"datamodule.augment": None},
    ),
    Cause(
        "unused parameters",
        lambda e: e.says("find_unused_parameters") or bool(e.fact("unused")),
        "DDP waits for their gradients; set trainer.strategy.find_unused_parameters=true, or take them out of the model",
        lambda _: {"trainer.strategy.find_unused_parameters": True},
    ),
    Cause(
        "a metric that averages means",
        lambda e: e.differs("validation metrics") and e.fact("validation") >= Plan.of(e.sides.other).world_size,
        "batches of unequal size count the same; sum over samples and divide once, as lockstep.models.SampleMean does",
        _equal_validation_batches,
    ),
    Cause(
        "a learning rate scaled by the world size",
        lambda e: e.differs("learning rate"),
        "at one global batch one rate is right; leave the world size out of the optimizer, or scale it by lr_scaling",
        interventions=lambda _: {LR},
    ),
    Cause(
        "gradients of rounding alone",
        lambda e: e.differs("gradients") and bool(e.rounding_alone),
        "they change with the order of the samples too: parameters without effect, as a bias before a norm is; leave them out",
        interventions=lambda e: {frozen(name) for name in e.rounding_alone},
    ),
)

KERNELS = Cause(
    "non-deterministic kernels",
    lambda _: True,
    "the reference, trained twice, is not the same to the bit; set trainer.deterministic=true",
    lambda _: {"trainer.deterministic": True},
)


def causes_of(evidence: Evidence, processes: Processes) -> list[Cause]:
    """The confirmed causes: with it, or with all of them, switched off the sides are equal; with one of them on they are not."""
    suspects = [cause for cause in CAUSES if cause.is_suspected(evidence)]
    confirmed = _confirmed(suspects, evidence, processes)
    if not confirmed and evidence.comparison is not None and not repeats(_shortened(evidence, []), processes):
        confirmed = _confirmed([KERNELS], evidence, processes) or _confirmed([*suspects, KERNELS], evidence, processes)
    return confirmed


def _confirmed(suspects: Sequence[Cause], evidence: Evidence, processes: Processes) -> list[Cause]:
    for suspect in suspects:
        if _equal_without([suspect], evidence, processes):
            return [suspect]
    if len(suspects) < 2 or not _equal_without(suspects, evidence, processes):
        return []
    rest = {suspect.name: [cause for cause in suspects if cause is not suspect] for suspect in suspects}
    return [suspect for suspect in suspects if not _equal_without(rest[suspect.name], evidence, processes)]


def _equal_without(causes: Sequence[Cause], evidence: Evidence, processes: Processes) -> bool:
    try:
        return compare(_shortened(evidence, causes), processes).equal
    except (SideFailed, ConfigError):  # it can't be switched off here
        return False


def _shortened(evidence: Evidence, without: Sequence[Cause]) -> Sides:
    """The sides with causes switched off, for as many steps as the difference needs to show."""
    steps = evidence.comparison.steps_needed if evidence.comparison is not None else evidence.sides.steps
    overrides = {key: value for cause in without for key, value in cause.switch(evidence).items()}
    interventions = frozenset(intervention for cause in without for intervention in cause.interventions(evidence))
    return evidence.sides.changed(overrides, interventions, steps)
