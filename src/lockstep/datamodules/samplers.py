"""Samplers for the order of an epoch, and for batches over all processes."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Sampler

from lockstep.noise import derive_seed

Reorder = Callable[[Tensor, int], Tensor]


class EpochOrder(Sampler[int]):
    """Sample indices of an epoch: all of them, or the first `samples` of its order.

    Args:
        length: length of the dataset.
        seed: seed of the order, which differs between epochs; None keeps the dataset's order.
        reorder: maps the order, (length,), and the epoch to another order, such as a curriculum's.
    """

    def __init__(self, length: int, samples: int, seed: int | None = None, reorder: Reorder | None = None) -> None:
        self.length, self.samples, self.seed, self.reorder = length, samples, seed, reorder
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        order = torch.arange(self.length) if self.seed is None else shuffled(self.length, derive_seed(self.seed, self.epoch))
        if self.reorder is not None:
            order = self.reorder(order, self.epoch)
        return iter(order[: self.samples].tolist())


class GlobalBatches(BatchSampler):
    """Batches of `batch_size` samples over all processes; lockstep.plain_lightning divides them among processes."""


def shuffled(length: int, seed: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))
