"""Draw an epoch's samples, and load each with the same random transforms on any number of processes, and after a resumption."""

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset, Sampler, Subset, TensorDataset

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


class Draws(list[Any]):
    """Indices of a batch's samples in the dataset, with the numbers by which each sample is seeded.

    Args:
        epoch: the epoch in training, 0 in an evaluation.
        places: positions in the epoch over all processes; a sample that is drawn twice has two. None: each index has its own, as
            in an evaluation.
    """

    def __init__(self, indices: Iterable[Any], epoch: int = 0, places: Sequence[int] | None = None) -> None:
        super().__init__(indices)
        self.epoch, self.places = epoch, places

    def __getitem__(self, key: Any) -> Any:
        chosen = super().__getitem__(key)
        if not isinstance(key, slice):
            return chosen
        return Draws(chosen, self.epoch, None if self.places is None else self.places[key])

    def place(self, number: int) -> int:
        return zlib.crc32(repr(self[number]).encode()) if self.places is None else self.places[number]


class Seeded(Dataset[Any]):
    """Load the samples of Draws from a map-style dataset, each with torch's, numpy's and Python's generators seeded for it.

    A dataset that loads a batch at once is seeded for the first sample. Other indices and attributes are the dataset's.

    Args:
        way: what Draws return: a list of the "samples", the only "sample", or what a dataset returns for a "list" of indices.
    """

    def __init__(self, dataset: Any, seed: int, way: Literal["samples", "sample", "list"] = "samples") -> None:
        vars(self).update(dataset=dataset, seed=seed, way=way)

    def __reduce__(self) -> Any:  # for spawned data workers: the dataset's attributes are no state of this object
        return type(self), (self.dataset, self.seed, self.way)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, drawn: Any) -> Any:
        if not isinstance(drawn, Draws):
            return self.dataset[drawn]
        loaded = self._load(drawn)
        return loaded[0] if self.way == "sample" else loaded

    def _load(self, draws: Draws) -> Any:
        """Return the samples, in the form in which the dataset loads a batch if it does so at once."""
        root = self.dataset
        while type(root) is Subset:  # a Subset has `__getitems__` even if its dataset has not
            root = root.dataset
        if type(root) is TensorDataset and self.way != "list":  # it has no transforms
            return [self.dataset[index] for index in draws]
        with isolate_rng(include_cuda=False):
            if self.way == "list" or hasattr(root, "__getitems__"):
                self._seed(draws, 0)
                return self.dataset[[*draws]] if self.way == "list" else self.dataset.__getitems__([*draws])
            return [self._load_one(draws, number) for number in range(len(draws))]

    def _load_one(self, draws: Draws, number: int) -> Any:
        self._seed(draws, number)
        return self.dataset[draws[number]]

    def _seed(self, draws: Draws, number: int) -> None:
        seed_generators(derive_seed(self.seed, draws.epoch, draws.place(number)))


def seed_generators(seed: int) -> None:
    """Seed only the CPU generators; torch.manual_seed would query every kind of device."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def shuffled(length: int, seed: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))
