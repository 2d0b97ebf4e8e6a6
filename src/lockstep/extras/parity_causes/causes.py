"""What may make two sides differ: a cheap symptom, what switches it off, and what to do about it. Imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from lockstep.config.plan import Plan
from lockstep.extras.parity.comparison import Comparison
from lockstep.extras.parity.sides import AT_THE_END

_METRICS = ("training metrics", "validation metrics", "test metrics")
Switch = dict[str, Any]  # values of both configs; switches.py says what those under `interventions` do


@dataclass(frozen=True)
class Cause:
    """`composes`: may it be switched off together with others? `is_general`: it may be another one's effect, too, which is then
    named instead."""

    name: str
    is_suspected: Callable[[Comparison], bool]
    remedy: str
    switch: Switch | Callable[[Comparison], Switch]
    composes: bool = True
    is_general: bool = False

    def switched_off(self, comparison: Comparison) -> Switch:
        return self.switch(comparison) if callable(self.switch) else self.switch


def _configured(comparison: Comparison, key: str) -> Any:
    return OmegaConf.select(comparison.sides.other, key)


def _differs_within_a_step(comparison: Comparison) -> bool:
    return comparison.differs("gradients", "loss")


def _is_merged(comparison: Comparison) -> bool:
    """Are batches that are accumulated compared with one larger batch?"""
    return comparison.reference_plan.accumulate_grad_batches < comparison.plan.accumulate_grad_batches


def _in_parts(comparison: Comparison, ranks: int) -> Switch:
    plan, batch_size = comparison.plan, comparison.plan.batch_size or comparison.facts.get("batch size") or 1
    accumulated = plan.accumulate_grad_batches if _is_merged(comparison) else 1
    return {"interventions.parts": [batch_size * plan.data_parallel_size, accumulated, ranks]}


def _equal_batches(comparison: Comparison) -> Switch:
    """A batch size, and numbers of batches, with which every batch of every process has as many samples as any other."""
    plan, lengths = comparison.plan, comparison.facts.get("length", {})
    stages = {"val": lengths.get("validation samples", 0), "test": lengths.get("test samples", 0)}
    size = max(1, min([plan.batch_size or 1, *(length // plan.data_parallel_size for length in stages.values() if length)]))
    total = size * plan.data_parallel_size
    batches = {"datamodule.batch_size": size, "datamodule.global_batch_size": total, "trainer.accumulate_grad_batches": 1}
    return batches | {f"trainer.limit_{stage}_batches": length // total for stage, length in stages.items() if length}


def _unpadded(comparison: Comparison) -> Switch:
    """Epochs that end before the batches in which a sampler repeats samples."""
    if "samples" not in comparison.facts["repeated"]:
        return _equal_batches(comparison)
    padded = min(difference.step for difference in comparison.beyond if difference.quantity == "samples")
    return {"trainer.limit_train_batches": max(1, padded * comparison.plan.accumulate_grad_batches)}


def _is_scaled(comparison: Comparison) -> bool:
    """Are the learning rates everywhere the reference's times one power of the world size?"""
    ratios = [other / reference for reference, other in comparison.facts.get("rates", ()) if reference]
    size = comparison.plan.world_size / comparison.reference_plan.world_size
    powers = (size, size**0.5, 1 / size, size**-0.5)
    return any(ratios and all(abs(ratio / power - 1) < 1e-6 for ratio in ratios) for power in powers)


def _is_summed(comparison: Comparison) -> bool:
    """Is each gradient of the first step that differs the reference's over the number of processes and accumulated batches?"""
    first, parts = comparison.first, _parts(comparison.plan) / _parts(comparison.reference_plan)
    if first is None or first.quantity != "gradients" or parts <= 1:
        return False
    gradients = [d for d in comparison.other.differences if d.quantity == "gradients" and d.step == first.step]
    return all(abs(d.value - (1 - 1 / parts)) < 1e-2 for d in gradients if d.size and d.name not in comparison.rounding_alone)


def _parts(plan: Plan) -> int:
    return plan.data_parallel_size * plan.accumulate_grad_batches


def _noise(library: str) -> Cause:
    def is_suspected(comparison: Comparison) -> bool:
        if comparison.differs("samples"):
            return True  # by the data, which draws before a step and in workers, where it is not seen
        return library in comparison.facts.get("draws", ()) and comparison.differs("gradients", "loss", "buffers", *AT_THE_END)

    return Cause(
        f"noise drawn per rank, by {library}",
        is_suspected,
        "what a sample gets depends on its process; draw it from (seed, epoch, id) by lockstep.counter_rng.random_bits",
        {f"interventions.constant.{library}": True},
        is_general=True,
    )


CAUSES = (
    Cause(
        "gradients that are sent in fewer bytes",
        lambda c: _configured(c, "trainer.strategy.communication") is not None,
        "what is sent is not the gradient of all; leave trainer/communication at null",
        {"trainer.strategy.communication": None},
    ),
    Cause(
        "a loss that is a sum over the batch",
        _is_summed,
        "gradients are averaged over processes and accumulated batches, so that they are as many times smaller; return a mean, "
        "or with this package's batches (losses.sum() * batch.loss_weight)",
        {"interventions.summed": True},
    ),
    Cause(
        "BatchNorm without synchronisation",
        lambda c: c.plan.world_size > 1 and c.facts.get("batchnorm", False) and not _configured(c, "trainer.sync_batchnorm"),
        "each process normalises by its own samples; set trainer.sync_batchnorm=true",
        {"trainer.sync_batchnorm": True},
    ),
    Cause(
        "batch_norm called by no BatchNorm layer",
        lambda c: c.plan.world_size > 1 and c.facts.get("batch_norm", False) and bool(_configured(c, "trainer.sync_batchnorm")),
        "torch's layers and their subclasses alone are synchronised; make what calls torch.nn.functional.batch_norm one of them",
        {"interventions.norms": True},
    ),
    Cause(
        "a BatchNorm with a forward of its own",
        lambda c: c.plan.world_size > 1 and c.facts.get("own batchnorm", False) and c.differs("gradients", "loss", "buffers"),
        "it normalises by each process's own samples; let it call torch.nn.functional.batch_norm, which is synchronised",
        lambda c: _in_parts(c, ranks=c.plan.data_parallel_size) | {"interventions.still": True},
    ),
    Cause(
        "a loss that averages over an uneven tail",
        lambda c: _configured(c, "datamodule.drop_last") is False and _differs_within_a_step(c),
        "processes with fewer samples count as much; return (losses.sum() * batch.loss_weight), or set datamodule.drop_last=true",
        {"datamodule.drop_last": True},
    ),
    Cause(
        "dropout drawn per rank",
        lambda c: "torch" in c.facts.get("draws", ()) and _differs_within_a_step(c),
        "a sample's mask depends on its process; use lockstep.nets.Dropout, which counts it from the sample",
        {"interventions.no_dropout": True},
    ),
    Cause(
        "augmentation drawn per rank",
        lambda c: _configured(c, "datamodule.augment") is not None and c.differs("samples"),
        "a sample's augmentation depends on its process; draw it from (seed, epoch, id) by lockstep.counter_rng.random_bits",
        {"datamodule.augment": None},
    ),
    Cause(
        "running statistics of each process's own samples",
        lambda c: c.plan.world_size > 1 and c.differs("buffers"),
        "process 0's are saved; reduce them over the processes, or keep none",
        {"interventions.still": True},
    ),
    Cause(
        "unused parameters",
        lambda c: "find_unused_parameters" in str(c.failure and c.failure.traceback) or c.facts.get("unused", False),
        "DDP waits for their gradients; set trainer.strategy.find_unused_parameters=true, or take them out of the model",
        {"trainer.strategy.find_unused_parameters": True},
    ),
    Cause(
        "a sampler that pads",
        lambda c: bool(c.plan.batch_size) and bool(c.facts.get("repeated")),
        "it repeats samples until all processes have as many; take one that does not, as lockstep.datamodules.samplers has",
        _unpadded,
    ),
    Cause(
        "a metric that averages means",
        lambda c: bool(c.plan.batch_size) and c.differs("validation metrics", "test metrics") and not c.facts.get("repeated"),
        "batches of unequal size count the same; sum over samples and divide once, as lockstep.models.SampleMean does",
        _equal_batches,
    ),
    Cause(
        "a learning rate scaled by the world size",
        lambda c: c.differs("learning rate") and _is_scaled(c),
        "at one global batch one rate is right; leave the world size out of the optimizer, or scale it by lr_scaling",
        {"interventions.rates": True},
    ),
    Cause(
        "a schedule that depends on the number of processes",
        lambda c: c.differs("learning rate") and not _is_scaled(c),
        "its length is counted in what one process has; count optimizer steps, as trainer.estimated_stepping_batches does",
        {"interventions.rates": True},
    ),
    *(_noise(library) for library in ("torch", "numpy", "Python")),
    Cause(
        "a mean over the tokens of each process",
        lambda c: c.plan.world_size > 1 and not _is_merged(c) and c.facts.get("tokens", False) and _differs_within_a_step(c),
        "processes with fewer tokens count as much; sum, and divide by the mean number of tokens over all processes",
        {"interventions.tokens": True},
        composes=False,
    ),
    Cause(
        "samples taken for time",
        lambda c: c.facts.get("time first", False) and _differs_within_a_step(c),
        "a recurrent or attention layer takes the first axis for time, so that samples see each other; set batch_first=True",
        {"interventions.batch_first": True},
    ),
    Cause(
        "a loss that sees a whole batch, and accumulated batches",
        lambda c: _is_merged(c) and _differs_within_a_step(c),
        "it is no sum over samples (in-batch negatives, a mean over tokens), so that several batches are not one larger batch",
        lambda c: _in_parts(c, ranks=1),
    ),
    Cause(
        "a net or a loss that sees the batch of its process alone",
        lambda c: c.reference_plan.world_size == 1 < c.plan.world_size and _differs_within_a_step(c),
        "samples see each other (statistics or attention over the batch, in-batch negatives, a mean over tokens): gather what "
        "they need from all processes, or let each stand for itself",
        lambda c: _in_parts(c, ranks=c.plan.data_parallel_size),
    ),
    Cause(
        "a metric that sees the batch of its process alone",
        lambda c: c.reference_plan.world_size == 1 < c.plan.world_size and c.differs(*_METRICS) and not _differs_within_a_step(c),
        "it is no mean over samples (a maximum, a median, a ratio): log a torchmetrics.Metric",
        lambda c: _in_parts(c, ranks=c.plan.data_parallel_size),
    ),
)

KERNELS = Cause(
    "non-deterministic kernels",
    lambda _: True,
    "the reference, trained twice, is not the same to the bit; set trainer.deterministic=true",
    {"trainer.deterministic": True},
)
