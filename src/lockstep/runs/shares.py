"""Data-parallel groups: the ranks that take the same part of each batch, and what is equal in all of them."""

from typing import Any


class EqualBuffers:
    """Base class of modules with buffers, `equal_buffers`, that stay equal in all processes without being sent."""

    equal_buffers: Any = ()


def dp_rank_and_size(trainer: Any) -> tuple[int, int]:
    """Return the data-parallel rank and size of this process: its rank and the world size, except that processes which hold parts
    of one layer take the same samples."""
    share = trainer.distributed_sampler_kwargs
    return (0, 1) if share is None else (share["rank"], share["num_replicas"])


def is_first_of_share(trainer: Any) -> bool:
    """Return whether this process is the first of those with the same samples, which counts them."""
    return trainer.global_rank % (trainer.world_size // dp_rank_and_size(trainer)[1]) == 0
