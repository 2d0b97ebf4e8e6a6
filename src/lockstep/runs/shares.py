"""Share of each batch that a process has."""

from typing import Any


def dp_rank_and_size(trainer: Any) -> tuple[int, int]:
    """Returns the number of a process's share, and how many there are: the rank and the world size, but that processes which hold
    the parts of one layer take the same samples."""
    share = trainer.distributed_sampler_kwargs
    return (0, 1) if share is None else (share["rank"], share["num_replicas"])


def is_first_of_share(trainer: Any) -> bool:
    """Return whether this is the process, among those with the same samples, that is to count them."""
    return trainer.global_rank % (trainer.world_size // dp_rank_and_size(trainer)[1]) == 0


def has_same_bits(trainer: Any) -> bool:
    """Return whether the strategy gives the same bits on any number of processes."""
    return getattr(trainer.strategy, "has_same_bits", False)
