"""Samplers that give each rank its samples, batch by batch: the same ones at any world size, each exactly once.

Both samplers are DistributedSamplers, so Lightning leaves their loaders alone and calls `set_epoch`. They yield whole batches
(one `BatchIndices` each), for a DataLoader with `batch_size=None`: batch k of the epoch is the k-th slice of `samples_per_batch`
samples of one global order, and rank r takes every world_size-th of it, from the r-th on. If the number of ranks does not divide
it, some have a sample less than others.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler, SequentialSampler

from lockstep.counter_rng import derive_seed
from lockstep.errors import EpochTooShort

_VIEWS = 1024  # number that is made at once


class BatchIndices(NamedTuple):
    """One batch of one rank: sample ids (n,), n = 0 where a tail leaves none for this rank; the epoch; and the loss_weight
    of each sample in the step's gradient, so that `losses.sum() * loss_weight` averages over the global batch."""

    ids: Tensor
    epoch: int
    loss_weight: float


class _BatchSampler(DistributedSampler[BatchIndices], SequentialSampler):  # pyright: ignore[reportGeneralTypeIssues]
    """A sampler that is a SequentialSampler, too: trainer.overfit_batches replaces any other by one."""

    def __init__(self, length: int, samples_per_batch: int, rank: int, world_size: int, shuffle: bool, seed: int) -> None:
        samples = cast("Dataset[BatchIndices]", range(length))  # the parent class only asks its length
        super().__init__(samples, num_replicas=world_size, rank=rank, shuffle=shuffle, seed=seed)
        self.length, self.samples_per_batch = length, samples_per_batch

    def _own(self, order: Tensor) -> Iterator[Tensor]:
        """Yield this rank's ids of each batch. Views are made for many batches at once: to make one takes a third of the time
        that a small batch takes to be fetched."""
        for many in order.split(_VIEWS * self.samples_per_batch):
            for ids in many.split(self.samples_per_batch):
                yield ids if self.num_replicas == 1 else ids[self.rank :: self.num_replicas]


class TrainSampler(_BatchSampler):
    """Every rank takes the same number of batches per epoch, reshuffled by (seed, epoch).

    `accumulate` batches of `samples_per_batch` samples, over all ranks, make one step over a global batch; None stands for
    batch_size * world_size.
    With drop_last the epoch ends with the last whole global batch; else with a smaller one, its samples weighted so
    that the step is the mean over them although ranks hold unequal numbers.
    `start` is for a run that is resumed within an epoch: (epoch, number of samples of its global order that are consumed).
    Each of `orders` makes another global order, of as many samples, from that of an epoch and the epoch.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        accumulate: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        start: tuple[int, int] = (0, 0),
        orders: Sequence[Callable[[Tensor, int], Tensor]] = (),
        samples_per_batch: int | None = None,
    ) -> None:
        super().__init__(length, samples_per_batch or batch_size * world_size, rank, world_size, shuffle, seed)
        self.start, self.orders = start, orders
        self.set_epoch(start[0])  # data workers may draw before Lightning says which epoch it is (Lightning issue 21938)
        self.accumulate = accumulate
        self.global_batch_size = self.samples_per_batch * accumulate
        self.full_batches = length // self.global_batch_size * accumulate
        self.tail = 0 if drop_last else length % self.global_batch_size
        if not len(self):
            parts = world_size * accumulate
            most, why = length // parts, f"is larger than the training split of {length} samples; use at most"
            if samples_per_batch is None:
                line = f"datamodule.batch_size={batch_size}: the global batch of {self.global_batch_size} {why} {most}"
            else:
                line = f"datamodule.global_batch_size={self.global_batch_size}: {why} {most * parts}"
            raise EpochTooShort(f"{line}, or datamodule.drop_last=false")

    def __len__(self) -> int:
        return self.full_batches + math.ceil(self.tail / self.samples_per_batch)

    @property
    def samples_per_epoch(self) -> int:
        """Number of samples over all ranks."""
        return self.full_batches // self.accumulate * self.global_batch_size + self.tail

    def __iter__(self) -> Iterator[BatchIndices]:
        order = shuffled(self.length, derive_seed(self.seed, self.epoch)) if self.shuffle else torch.arange(self.length)
        for reorder in self.orders:
            order = reorder(order, self.epoch)
        # Lightning divides by `accumulate`, DDP by the world size: both are multiplied back.
        multiplier = self.num_replicas * self.accumulate
        first = self.start[1] // self.samples_per_batch if self.epoch == self.start[0] else 0
        for batch, ids in zip(range(first, len(self)), self._own(order[first * self.samples_per_batch :]), strict=False):
            step_samples = self.global_batch_size if batch < self.full_batches else self.tail
            yield BatchIndices(ids, self.epoch, loss_weight=multiplier / step_samples)


class EvalSampler(_BatchSampler):
    """Yield every sample exactly once, in one shuffled order that depends on the length alone: data often comes sorted by class,
    and the first batches should be of all of them. A batch's ids name its samples. All ranks take the same number of batches
    (collectives inside an evaluation step stay matched); where samples run out the last ones are smaller or empty."""

    def __init__(self, length: int, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(length, batch_size * world_size, rank, world_size, shuffle=False, seed=0)
        self.samples_per_epoch = length

    def __len__(self) -> int:
        return math.ceil(self.length / self.samples_per_batch)

    def __iter__(self) -> Iterator[BatchIndices]:
        order = shuffled(self.length, derive_seed(self.length))
        yield from (BatchIndices(ids, 0, loss_weight=1.0) for ids in islice(self._own(order), len(self)))


def shuffled(length: int, seed: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))
