"""Weight of a process's gradient in an optimizer step, whose gradient is the mean over all samples of the step."""

from typing import Any, NamedTuple

from lockstep.plain_lightning.loaders import SharedSampler


class Weight(NamedTuple):
    """Weights of a batch.

    Attributes:
        in_batch: weight of this rank's mean in the batch.
        in_step: weight of the batch in the step; Lightning divides by accumulate_grad_batches even if a step has fewer.
        samples: number of samples of this rank, 0 for a dummy.
        is_even: True if all ranks have equally many.
        is_known: False if loaders divide the batch differently; it is then not weighted among ranks.
    """

    in_batch: float = 1.0
    in_step: float = 1.0
    samples: int = 1
    is_even: bool = False
    is_known: bool = True


def weight_of(batch: int, samplers: list[Any], accumulated: int, batches: float) -> Weight:
    """Return the weight of a batch in an epoch of `batches` batches. `samplers` are those of the training loaders."""
    shared = [(sampler.num_replicas, *sampler.samples_in(batch)) for sampler in samplers if isinstance(sampler, SharedSampler)]
    uneven = {whole if whole % ranks else 0 for ranks, _, whole in shared}
    if len(shared) < len(samplers):
        uneven.add(0)
    in_step = 1.0
    if are_counted(samplers):
        first = batch - batch % accumulated
        others = range(first, int(min(first + accumulated, batches)))
        in_step = accumulated * shared[0][2] / sum(samplers[0].samples_in(other)[1] for other in others)
    if not shared or len(uneven) > 1:
        return Weight(in_step=in_step, is_known=len(uneven) < 2)
    ranks, own, whole = shared[0]
    return Weight(own * ranks / whole, in_step, own, uneven == {0})


def are_counted(samplers: list[Any]) -> bool:
    """Return whether the number of samples of each batch is known."""
    return bool(samplers) and all(isinstance(sampler, SharedSampler) for sampler in samplers)
