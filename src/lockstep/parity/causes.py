"""What may make two sides differ: a cheap symptom, what switches it off, and what to do about it. Imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.parity.evidence import Evidence
from lockstep.parity.sides import CONSTANT, FROZEN, LIBRARIES, NO_DROPOUT, PARTS, RATES, REDUCED, STILL, TOKENS, Interventions


@dataclass(frozen=True)
class Cause:
    """`switch` gives values of both configs, `interventions` what is done to both sides beyond them.

    `composes`: may it be switched off together with others?
    """

    name: str
    is_suspected: Callable[[Evidence], bool]
    remedy: str
    switch: Callable[[Evidence], dict[str, Any]] = lambda _: {}
    interventions: Callable[[Evidence], Interventions] = lambda _: {}
    composes: bool = True


def _differs_within_a_step(evidence: Evidence) -> bool:
    return evidence.differs("gradients", "loss")


def _is_merged(evidence: Evidence) -> bool:
    """Are batches that are accumulated compared with one larger batch?"""
    return evidence.reference.accumulate_grad_batches < evidence.plan.accumulate_grad_batches


def _parts(evidence: Evidence, ranks: int) -> Interventions:
    plan, merged = evidence.plan, _is_merged(evidence)
    return {PARTS: (plan.batch_size * plan.world_size, plan.accumulate_grad_batches if merged else 1, ranks)}


def _equal_batches(evidence: Evidence) -> dict[str, Any]:
    """A batch size, and numbers of batches, with which every batch of every process has as many samples as any other."""
    plan, lengths = evidence.plan, evidence.fact("length") or {}
    stages = {stage: lengths.get(f"{stage} samples", 0) for stage in ("validation", "test")}
    size = max(1, min([plan.batch_size, *(length // plan.world_size for length in stages.values() if length)]))
    total = size * plan.world_size
    batches = {"datamodule.batch_size": size, "datamodule.global_batch_size": total} | {"trainer.accumulate_grad_batches": 1}
    keys = {"validation": "trainer.limit_val_batches", "test": "trainer.limit_test_batches"}
    return batches | {keys[stage]: length // total for stage, length in stages.items() if length}


def _unpadded(evidence: Evidence) -> dict[str, Any]:
    """Epochs that end before the batches in which a sampler repeats samples."""
    if "samples" not in evidence.fact("repeated"):
        return _equal_batches(evidence)
    assert evidence.comparison is not None
    padded = min(d.step for d in evidence.comparison.beyond if d.quantity == "samples")
    return {"trainer.limit_train_batches": max(1, padded * evidence.plan.accumulate_grad_batches)}


def _is_scaled(evidence: Evidence) -> bool:
    """Are the learning rates everywhere the reference's times one power of the world size?"""
    ratios = [other / reference for reference, other in evidence.fact("rates") or [] if reference]
    size = evidence.plan.world_size / evidence.reference.world_size
    powers = (size, size**0.5, 1 / size, size**-0.5)
    return any(ratios and all(abs(ratio / power - 1) < 1e-6 for ratio in ratios) for power in powers)


def _noise(library: str) -> Cause:
    def is_suspected(evidence: Evidence) -> bool:
        if evidence.differs("samples"):
            return True  # by the data, which draws before a step and in workers, where it is not seen
        return library in (evidence.fact("draws") or ()) and evidence.differs("gradients", "loss", "buffers")

    return Cause(
        f"noise drawn per rank, by {library}",
        is_suspected,
        "what a sample gets depends on its process; draw it from (seed, epoch, id) by lockstep.counter_rng.random_bits",
        interventions=lambda _: {CONSTANT: (library,)},
    )


CAUSES = (
    Cause(
        "BatchNorm without synchronisation",
        lambda e: e.plan.world_size > 1 and bool(e.fact("batchnorm")) and not e.configured("trainer.sync_batchnorm"),
        "each process normalises by its own samples; set trainer.sync_batchnorm=true",
        lambda _: {"trainer.sync_batchnorm": True},
    ),
    Cause(
        "a loss that averages over an uneven tail",
        lambda e: e.configured("datamodule.drop_last") is False and _differs_within_a_step(e),
        "processes with fewer samples count as much; return (losses.sum() * batch.loss_weight), or set datamodule.drop_last=true",
        lambda _: {"datamodule.drop_last": True},
    ),
    Cause(
        "dropout drawn per rank",
        lambda e: "torch" in (e.fact("draws") or ()) and _differs_within_a_step(e),
        "a sample's mask depends on its process; use lockstep.nets.Dropout, which counts it from the sample",
        interventions=lambda _: {NO_DROPOUT: True},
    ),
    Cause(
        "augmentation drawn per rank",
        lambda e: e.configured("datamodule.augment") is not None and e.differs("samples"),
        "a sample's augmentation depends on its process; draw it from (seed, epoch, id) by lockstep.counter_rng.random_bits",
        lambda _: {"datamodule.augment": None},
    ),
    Cause(
        "running statistics of each process's own samples",
        lambda e: e.plan.world_size > 1 and e.differs("buffers"),
        "process 0's are saved; reduce them over the processes, or keep none",
        interventions=lambda _: {STILL: True},
    ),
    Cause(
        "unused parameters",
        lambda e: e.says("find_unused_parameters") or bool(e.fact("unused")),
        "DDP waits for their gradients; set trainer.strategy.find_unused_parameters=true, or take them out of the model",
        lambda _: {"trainer.strategy.find_unused_parameters": True},
    ),
    Cause(
        "a sampler that pads",
        lambda e: bool(e.fact("repeated")),
        "it repeats samples until all processes have as many; take one that does not, as lockstep.datamodules.samplers has",
        _unpadded,
    ),
    Cause(
        "a metric that averages means",
        lambda e: e.differs("validation metrics", "test metrics") and not e.fact("repeated"),
        "batches of unequal size count the same; sum over samples and divide once, as lockstep.models.SampleMean does",
        _equal_batches,
    ),
    Cause(
        "a metric that is not reduced over processes",
        lambda e: e.differs("training metrics", "validation metrics", "test metrics") and not e.fact("logged alone"),
        "what is logged is that of process 0 alone; log it with sync_dist=true, or as a torchmetrics object",
        interventions=lambda _: {REDUCED: True},
    ),
    Cause(
        "a learning rate scaled by the world size",
        lambda e: e.differs("learning rate") and _is_scaled(e),
        "at one global batch one rate is right; leave the world size out of the optimizer, or scale it by lr_scaling",
        interventions=lambda _: {RATES: True},
    ),
    Cause(
        "a schedule that depends on the number of processes",
        lambda e: e.differs("learning rate") and not _is_scaled(e),
        "its length is counted in what one process has; count optimizer steps, as trainer.estimated_stepping_batches does",
        interventions=lambda _: {RATES: True},
    ),
    *(_noise(library) for library in LIBRARIES),
    Cause(
        "gradients of rounding alone",
        lambda e: e.differs("gradients") and bool(e.rounding_alone),
        "they change with the order of the samples too: parameters without effect, as a bias before a norm is; leave them out",
        interventions=lambda e: {FROZEN: tuple(sorted(e.rounding_alone))},
    ),
    Cause(
        "a mean over the tokens of each process",
        lambda e: e.plan.world_size > 1 and not _is_merged(e) and bool(e.fact("tokens")) and _differs_within_a_step(e),
        "processes with fewer tokens count as much; sum, and divide by the mean number of tokens over all processes",
        interventions=lambda _: {TOKENS: True},
        composes=False,
    ),
    Cause(
        "a loss that sees a whole batch, and accumulated batches",
        lambda e: _is_merged(e) and _differs_within_a_step(e),
        "it is no sum over samples (in-batch negatives, a mean over tokens), so that several batches are not one larger batch",
        interventions=lambda e: _parts(e, ranks=1),
    ),
    Cause(
        "a loss that sees the batch of its process alone",
        lambda e: e.reference.world_size == 1 < e.plan.world_size and _differs_within_a_step(e),
        "it is no sum over samples (a mean over a process's tokens, in-batch negatives): gather what it needs from all",
        interventions=lambda e: _parts(e, ranks=e.plan.world_size),
    ),
)

KERNELS = Cause(
    "non-deterministic kernels",
    lambda _: True,
    "the reference, trained twice, is not the same to the bit; set trainer.deterministic=true",
    lambda _: {"trainer.deterministic": True},
)
