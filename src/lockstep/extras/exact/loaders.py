"""Loaders that know nothing of this package: a process's share of a batch is the shares of its virtual workers.

Worker v of V takes every V-th sample of the global batch, from the v-th on. The dataset and the collate function are called for
each worker by itself, with generators that are seeded for its batch: their draws and their padding do not depend on the
process.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lockstep.counter_rng import derive_seed
from lockstep.datamodules.seeded import Restored, index_of, seed_generators
from lockstep.extras.plain_lightning.loaders import (
    SharedSampler,
    batches_of_equal_number,
    dropped_of,
    loading_arguments,
    own_sampler,
)


class Drawn(NamedTuple):
    """A sample of a batch of `whole` samples; a dummy if this process has none of the batch."""

    number: int
    epoch: int
    whole: int
    is_dummy: bool


class Share(NamedTuple):
    """A worker's share of a batch: `samples` of `whole`. Without samples, `batch` is a dummy's, or None."""

    batch: Any
    samples: int
    whole: int


class Shares(list[Share]):
    """The shares of a process's workers."""


class WorkersSampler(SharedSampler):
    """Yield Drawn samples; its batch size is that of all workers of the process."""

    def __iter__(self) -> Iterator[Any]:
        for position, draw in enumerate(super().__iter__()):
            own, whole = self.samples_in(position // self.batch_size)
            yield Drawn(index_of(draw), self.epoch, whole, is_dummy=own == 0)


class WorkerBatches(Dataset[Shares]):
    """A loader's dataset and collate function, which make a process's Shares of the samples that are Drawn for it."""

    def __init__(self, loader: DataLoader[Any], own: int, seed: int) -> None:
        self.dataset, self.collate, self.is_batched = loader.dataset, loader.collate_fn, loader.batch_sampler is not None
        self.own, self.seed = own, seed

    def __getitems__(self, drawn: Sequence[Drawn]) -> Shares:
        with Restored():
            return Shares(self._share(drawn[worker :: self.own], drawn[0].whole) for worker in range(self.own))

    def _share(self, drawn: Sequence[Drawn], whole: int) -> Share:
        if not drawn:
            return Share(None, 0, whole)
        seed_generators(derive_seed(self.seed, drawn[0].epoch, drawn[0].number))
        ids, fetch = [one.number for one in drawn], getattr(self.dataset, "__getitems__", None)
        samples = [self.dataset[index] for index in ids] if fetch is None else fetch(ids)
        return Share(self.collate(samples if self.is_batched else samples[0]), 0 if drawn[0].is_dummy else len(ids), whole)


def workers_loader(
    loader: DataLoader[Any], share: tuple[int, int], own: int, seed: int, training: bool
) -> DataLoader[Any] | None:
    """Return the loader of a process, (number, of how many), that has `own` workers; None if `loader` draws batches in a way of
    its own."""
    order = own_sampler(loader, loader.batch_sampler)
    if order is None:
        return None
    batch_size = getattr(loader.batch_sampler, "batch_size", 1)
    workers = own * share[1]
    dropped = dropped_of(loader.batch_sampler, len(order), workers if training else 1)
    if not training:
        batch_size = batches_of_equal_number(len(order) - dropped, batch_size, workers)
    sampler = WorkersSampler(order, batch_size * own, share, seed, dropped, training)
    sampler.check_length(workers)
    batches: Any = WorkerBatches(loader, own, seed)
    loading: dict[str, Any] = loading_arguments(loader) | {"collate_fn": _as_it_is}
    return DataLoader(batches, sampler.batch_size, sampler=sampler, **loading)


def _as_it_is(shares: Shares) -> Shares:
    return shares


def shares_of_workers(batch: Any, own: int) -> list[Share] | None:
    """Return each worker's share of a batch from such loaders, of one or of a collection of them; None for a batch from
    elsewhere."""
    parts: list[Shares] = []
    apply_to_collection(batch, Shares, parts.append)
    if not parts:
        return None

    def share(worker: int) -> Share:
        whole = apply_to_collection(batch, Shares, lambda shares: shares[worker].batch)
        smallest = min((part[worker] for part in parts), key=lambda one: one.samples)
        return smallest._replace(batch=whole)

    return [share(worker) for worker in range(own)]


def in_order(outputs: list[Any], samples: int | None, workers: int) -> Any:
    """Return the rows of a process's workers in the order of its batch if their outputs have a row for each sample, else the
    first worker's output."""
    if not outputs or not all(isinstance(output, Tensor) and output.ndim for output in outputs):
        return outputs[0] if outputs else None
    if sum(map(len, outputs)) != samples:
        return outputs[0]
    whole = outputs[0].new_empty(samples, *outputs[0].shape[1:])
    for index, output in enumerate(outputs):
        whole[index::workers] = output
    return whole
