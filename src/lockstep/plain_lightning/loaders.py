"""Divide the batches of any DataLoader among processes.

Batch k of all ranks together is batch k of one process whose loader takes batch_size * world_size samples, and each sample is
used once. Lightning's own sampler repeats samples until ranks have equal numbers (torch's DistributedSampler; Lightning issue
7929).
"""

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from lockstep.datamodules.seeded import Draws, GlobalBatches, Seeded, seed_generators
from lockstep.errors import config_error
from lockstep.noise import derive_seed
from lockstep.trainer.lightning_internals import with_change

LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
# Arguments of a DataLoader that decide how its batches are loaded, not which. The generator, from which data workers would take
# their seeds, is left out: its state comes from the previous epoch, and differs after a resumption.
_LOADING = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
_LOADING += ("prefetch_factor", "persistent_workers", "in_order")


def change_loaders(source: Any, change: Callable[[str, list[Any]], list[Any]]) -> None:
    """Replace the loaders that each method of a datamodule or a module returns by `change(method name, loaders)`."""
    for name in LOADERS:
        if is_overridden(name, source):
            setattr(source, name, with_change(getattr(source, name), partial(change, name)))


class SharedSampler(DistributedSampler[Any], SequentialSampler):
    """Yield the Draws of each batch: every world_size-th of its samples in the order of one process, from the rank-th on.

    The loader's own sampler draws an order in each epoch, with generators seeded from (seed, epoch), so it is the same on every
    rank and after a resumption. The last `dropped` samples of an epoch are left out. If a training batch has fewer samples than
    there are ranks, each rank without one gets the batch's last sample as a dummy (see `samples_in`).
    This is a SequentialSampler, because trainer.overfit_batches replaces any other sampler by one.
    """

    def __init__(
        self, sampler: Any, global_batch_size: int, share: tuple[int, int], seed: int, dropped: int, training: bool
    ) -> None:
        super().__init__(range(len(sampler)), *reversed(share), shuffle=False, seed=seed)  # pyright: ignore[reportArgumentType]
        self.sampler, self.global_batch_size, self.training = sampler, global_batch_size, training
        self.length = len(sampler)
        self.samples_per_epoch = self.length - dropped
        self.batches = -(-self.samples_per_epoch // global_batch_size)
        self.passed = (0, 0)  # an epoch, and how many of its batches are skipped
        self.begin_with(0)

    @property
    def batch_size(self) -> int:
        """Batch size of a process; the largest one if processes have unequal numbers of a batch's samples."""
        return -(-self.global_batch_size // self.num_replicas)

    @property
    def first(self) -> int:
        """First batch of the epoch that is not skipped."""
        return self.passed[1] if self.passed[0] == self.epoch else 0

    def begin_with(self, epoch: int) -> None:
        """Make this epoch the first one for which the sampler draws."""
        self.epoch, self._drawn = epoch, epoch - 1  # the latest epoch whose order was drawn

    def samples_in(self, batch: int) -> tuple[int, int]:
        """Return how many samples of the epoch's batch this rank has, 0 for a dummy, and how many all ranks have. A loader that
        is shorter than another one restarts."""
        first = batch % max(1, self.batches) * self.global_batch_size
        whole = min(self.global_batch_size, self.samples_per_epoch - first)
        return len(range(self.rank, whole, self.num_replicas)), whole

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        return map(self.draws, range(self.first, self.batches))

    def draws(self, batch: int) -> Draws:
        """Return this rank's samples in a batch of the epoch."""
        begin = batch * self.global_batch_size
        end = min(begin + self.global_batch_size, self.samples_per_epoch)
        places = range(begin + self.rank, end, self.num_replicas) or range(end - int(self.training), end)
        samples = self.order()[places.start : places.stop : places.step]
        return Draws(samples, self.epoch, places) if self.training else Draws(samples)

    def order(self) -> list[Any]:
        """Return the epoch's order. A user's own sampler may have its own generator, so it draws earlier epochs' orders, too."""
        if self.epoch != self._drawn:
            takes_epoch = hasattr(self.sampler, "set_epoch") or type(self.sampler).__module__.startswith("torch.utils.data")
            for epoch in range(self.epoch if takes_epoch else min(self.epoch, self._drawn + 1), self.epoch + 1):
                self._order = self._draw(epoch)
            self._drawn = self.epoch
        return self._order

    def _draw(self, epoch: int) -> list[Any]:
        seed = derive_seed(self.seed, epoch)
        with isolate_rng(include_cuda=False):
            seed_generators(seed)
            getattr(self.sampler, "set_epoch", lambda _: None)(epoch)
            if isinstance(generator := getattr(self.sampler, "generator", None), torch.Generator):
                generator.manual_seed(seed)
            return list(self.sampler)

    def order_checksum(self) -> int:
        """Return a checksum of the first thousand samples in the epoch's order."""
        return zlib.crc32(repr(self.order()[:1000]).encode())


def shared_loader(loader: DataLoader[Any], share: tuple[int, int], seed: int, training: bool) -> DataLoader[Any] | None:
    """Return the loader of one part of each batch, `share` = (rank, size); None if the loader draws batches in another way.

    Raise ConfigError if the data has fewer samples than there are data-parallel groups.
    """
    division = division_of(loader, share[1], training)
    if division is None:
        return None
    order, size, dropped = division
    sampler = SharedSampler(order, size, share, seed, dropped, training)
    data = seeded_data(loader, derive_seed(seed, training))
    return DataLoader(data, batch_size=None, sampler=sampler, **loading_arguments(loader))


def seeded_data(loader: DataLoader[Any], seed: int) -> Seeded:
    """Return a loader's dataset as one that loads what the loader collates into a batch, by Draws."""
    if isinstance(loader.dataset, Seeded):
        return loader.dataset
    if takes_lists(loader):
        return Seeded(loader.dataset, seed, "list")
    return Seeded(loader.dataset, seed, "sample" if loader.batch_sampler is None else "samples")


def division_of(loader: DataLoader[Any], shares: int, training: bool) -> tuple[Any, int, int] | None:
    """Return a loader's sampler, its global batch size over `shares`, and the number of samples dropped at the end; None if it
    draws batches in another way. Raise ConfigError if it has fewer samples than shares."""
    batches: Any = loader.sampler if takes_lists(loader) else loader.batch_sampler
    if not (draws_as(loader, DataLoader) and (batches is None or draws_as(batches, BatchSampler))):
        return None
    order = _whole_order(loader.sampler if batches is None else batches.sampler)
    if order is None:
        return None
    given = getattr(batches, "batch_size", 1)
    size = given if isinstance(batches, GlobalBatches) else given * shares
    whole = given * shares if training else given  # an evaluation drops the same samples as on one process
    dropped = len(order) % whole if getattr(batches, "drop_last", False) else 0
    samples = len(order) - dropped
    if 0 < samples < shares:
        raise config_error("datamodule", f"{samples} sample(s)", f"use at least {shares}, one for each process or worker")
    while not training and 0 < samples % size < shares:
        size += shares  # so that every process has a sample of each batch, and takes part in collectives of a validation step
    return order, size, dropped


def _whole_order(sampler: Any) -> Any | None:
    """Return a sampler of all samples; None if their number is unknown, or if the user's code has divided them."""
    if draws_as(sampler, DistributedSampler):
        return RandomSampler(sampler.dataset) if sampler.shuffle else SequentialSampler(sampler.dataset)
    is_share = isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1
    return sampler if hasattr(sampler, "__len__") and not is_share else None


def takes_lists(loader: DataLoader[Any]) -> bool:
    """Return whether a loader indexes its dataset by the list of a batch's samples."""
    return loader.batch_sampler is None and draws_as(loader.sampler, BatchSampler)


def draws_as(part: Any, kind: type) -> bool:
    """Return whether an object of torch's class `kind`, or of a subclass, draws as `kind` does; it may override other methods."""
    return isinstance(part, kind) and all(getattr(type(part), name) is getattr(kind, name) for name in ("__iter__", "__len__"))


def loading_arguments(loader: DataLoader[Any]) -> dict[str, Any]:
    return {name: value for name in _LOADING if (value := getattr(loader, name, None)) is not None}
