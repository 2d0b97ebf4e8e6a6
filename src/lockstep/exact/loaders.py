"""Loaders that know nothing of this package: a process's share of a batch is the shares of its virtual workers.

Worker v of V takes every V-th sample of the global batch, from the v-th on. The dataset and the collate function are called for
each worker by itself, with generators that are seeded for its batch: their draws and their padding do not depend on the
process.
"""

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from lightning.pytorch.utilities.seed import isolate_rng
from lightning_utilities.core.apply_func import apply_to_collection
from torch.utils.data import DataLoader, Dataset

from lockstep.datamodules.seeded import Draws, seed_generators
from lockstep.noise import derive_seed
from lockstep.plain_lightning.loaders import SharedSampler, division_of, loading_arguments, seeded_data


class Drawn(NamedTuple):
    """A process's part of a batch of `whole` samples; a dummy if it has none of them."""

    draws: Draws
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
    """Yield Drawn batches, with the samples of all workers of the process."""

    def __iter__(self) -> Iterator[Any]:
        for batch in range(self.first, self.batches):
            own, whole = self.samples_in(batch)
            yield Drawn(self.draws(batch), self.epoch, whole, is_dummy=own == 0)


class WorkerBatches(Dataset[Shares]):
    """A loader's dataset and collate function, which make a process's Shares of the samples that are Drawn for it."""

    def __init__(self, loader: DataLoader[Any], own: int, seed: int) -> None:
        self.dataset, self.collate = seeded_data(loader, seed), loader.collate_fn
        self.own, self.seed = own, seed

    def __getitem__(self, drawn: Drawn) -> Shares:
        with isolate_rng(include_cuda=False):
            return Shares(self._share(drawn, drawn.draws[worker :: self.own]) for worker in range(self.own))

    def _share(self, drawn: Drawn, draws: Draws) -> Share:
        if not draws:
            return Share(None, 0, drawn.whole)
        loaded = self.dataset[draws]
        seed_generators(derive_seed(self.seed, drawn.epoch, zlib.crc32(repr(draws[0]).encode())))
        return Share(self.collate(loaded), 0 if drawn.is_dummy else len(draws), drawn.whole)


def workers_loader(
    loader: DataLoader[Any], share: tuple[int, int], own: int, seed: int, training: bool
) -> DataLoader[Any] | None:
    """Return the loader of a process, (number, of how many), that has `own` workers; None if `loader` draws batches in a way of
    its own."""
    workers = own * share[1]
    division = division_of(loader, workers, training)
    if division is None:
        return None
    order, size, dropped = division
    sampler = WorkersSampler(order, size, share, seed, dropped, training)
    loading: dict[str, Any] = loading_arguments(loader) | {"collate_fn": _as_it_is}
    return DataLoader(WorkerBatches(loader, own, seed), batch_size=None, sampler=sampler, **loading)


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
