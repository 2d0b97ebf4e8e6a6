"""Random transforms that are equal on any number of processes and data workers, and after a resumption."""

import random
import zlib
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import Dataset, Subset, TensorDataset

from lockstep.noise import derive_seed


class Draw(NamedTuple):
    """A training sample. `place` is its position in the epoch over all processes; a sample that is drawn twice has two."""

    index: Any
    epoch: int
    place: int


class Draws(list[Any]):
    """The dataset's indices of a training batch, with the epoch and their `places` in it."""

    def __init__(self, indices: Sequence[Any], epoch: int, places: Sequence[int]) -> None:
        super().__init__(indices)
        self.epoch, self.places = epoch, places

    def __getitem__(self, key: Any) -> Any:
        chosen = super().__getitem__(key)
        return Draws(chosen, self.epoch, self.places[key]) if isinstance(key, slice) else chosen


class Seeded(Dataset[Any]):
    """Load each sample of a map-style dataset with torch's, numpy's and Python's generators seeded from (seed, epoch, place), or
    from (seed, index) in an evaluation.

    A dataset with `__getitems__` loads a batch at once, seeded from its first sample. Other attributes are the dataset's.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        vars(self).update(dataset=dataset, seed=seed)

    def __reduce__(self) -> Any:  # for spawned data workers: the dataset's attributes are no state of this object
        return type(self), (self.dataset, self.seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, drawn: Any) -> Any:
        if not isinstance(drawn, list):
            return self.__getitems__([drawn])[0]
        drawn = one_by_one(drawn)
        with isolate_rng(include_cuda=False):
            self._seed(drawn[0])
            return self.dataset[indices(drawn)]

    def __getitems__(self, drawn: Sequence[Any]) -> Any:
        root, drawn = _root(self.dataset), one_by_one(drawn)
        if type(root) is TensorDataset:  # it has no transforms
            return [self.dataset[index] for index in indices(drawn)]
        with isolate_rng(include_cuda=False):
            if hasattr(root, "__getitems__"):
                self._seed(drawn[0])
                return self.dataset.__getitems__(indices(drawn))
            return [self._load(draw, index) for draw, index in zip(drawn, indices(drawn), strict=True)]

    def _load(self, draw: Any, index: Any) -> Any:
        self._seed(draw)
        return self.dataset[index]

    def _seed(self, draw: Any) -> None:
        epoch, place = draw[1:] if isinstance(draw, Draw) else (0, zlib.crc32(repr(draw).encode()))
        seed_generators(derive_seed(self.seed, epoch, place))


def one_by_one(drawn: Sequence[Any]) -> Sequence[Any]:
    """Return the samples of Draws, each as a Draw."""
    return [*map(Draw, drawn, repeat(drawn.epoch), drawn.places)] if isinstance(drawn, Draws) else drawn


def indices(drawn: Sequence[Any]) -> list[Any]:
    """Return the dataset's indices of a batch, of which each is a Draw or none is."""
    return [draw[0] for draw in drawn] if isinstance(drawn[0], Draw) else [*drawn]


def seed_generators(seed: int) -> None:
    """Seed only the CPU generators; torch.manual_seed would query every kind of device."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def _root(dataset: Any) -> Any:
    """Return the dataset inside nested Subsets, because a Subset has `__getitems__` even if its dataset has not."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset
