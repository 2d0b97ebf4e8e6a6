"""Data-parallel groups: the ranks that take the same part of each batch."""

from typing import Any

from lockstep.strategies.ddp import PlannedWorldSize


def dp_rank_and_size(trainer: Any) -> tuple[int, int]:
    """Return the data-parallel rank and size of this process: its rank and the world size, except that processes which hold parts
    of one layer take the same samples."""
    share = trainer.distributed_sampler_kwargs
    return (0, 1) if share is None else (share["rank"], share["num_replicas"])


def is_first_of_share(trainer: Any) -> bool:
    """Return whether this process is the first of those with the same samples, which counts them."""
    return trainer.global_rank % (trainer.world_size // dp_rank_and_size(trainer)[1]) == 0


def has_same_bits(trainer: Any) -> bool:
    """Return whether the strategy gives the same bits on any number of processes."""
    return isinstance(trainer.strategy, PlannedWorldSize) and trainer.strategy.has_same_bits
