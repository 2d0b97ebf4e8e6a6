"""Random transforms that are equal on any number of processes and data workers, and after a resumption."""

import random
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from lockstep.noise import derive_seed


class Draw(NamedTuple):
    """A training sample. `place` is its position in the epoch over all processes; a sample that is drawn twice has two."""

    index: Any
    epoch: int
    place: int


class Seeded(Dataset[Any]):
    """Load each sample of a map-style dataset with torch's, numpy's and Python's generators seeded from (seed, epoch, place), or
    from (seed, index) in an evaluation.

    A dataset with `__getitems__` loads a batch at once, seeded from its first sample. Other attributes are the dataset's.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        root = _root(dataset)
        is_seeded = type(root) is not TensorDataset  # which has no transforms
        vars(self).update(dataset=dataset, seed=seed, is_seeded=is_seeded, fetches_batches=hasattr(root, "__getitems__"))

    def __reduce__(self) -> Any:  # for spawned data workers: the dataset's attributes are no state of this object
        return Seeded, (self.dataset, self.seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, drawn: Any) -> Any:
        if not isinstance(drawn, list):
            return self.__getitems__([drawn])[0]
        with Restored(is_needed=self.is_seeded):
            self._seed(drawn[0])
            return self.dataset[indices(drawn)]

    def __getitems__(self, drawn: Sequence[Any]) -> Any:
        with Restored(is_needed=self.is_seeded):
            if self.fetches_batches:
                self._seed(drawn[0])
                return self.dataset.__getitems__(indices(drawn))
            return [self._load(draw, index) for draw, index in zip(drawn, indices(drawn), strict=True)]

    def _load(self, draw: Any, index: Any) -> Any:
        if self.is_seeded:
            self._seed(draw)
        return self.dataset[index]

    def _seed(self, draw: Any) -> None:
        epoch, place = draw[1:] if isinstance(draw, Draw) else (0, zlib.crc32(repr(draw).encode()))
        seed_generators(derive_seed(self.seed, epoch, place))


def indices(drawn: Sequence[Any]) -> list[Any]:
    """Return the dataset's indices of a batch, of which each is a Draw or none is."""
    return [draw[0] for draw in drawn] if isinstance(drawn[0], Draw) else [*drawn]


class Restored:
    """Restore the states of the CPU generators at the end of the block, except in a data worker. With a seed, draws in the block
    depend on it alone."""

    def __init__(self, is_needed: bool = True, seed: int | None = None) -> None:
        self.is_needed, self.seed = is_needed and torch.utils.data.get_worker_info() is None, seed

    def __enter__(self) -> None:
        if self.is_needed:
            self._states = generator_states()
        if self.seed is not None:
            seed_generators(self.seed)

    def __exit__(self, *_: object) -> None:
        if self.is_needed:
            set_generators(self._states)


def generator_states() -> tuple[Any, Any, Any]:
    """Return the states of the CPU generators of torch, numpy and Python."""
    return torch.get_rng_state(), numpy.random.get_state(), random.getstate()


def set_generators(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    numpy.random.set_state(states[1])
    random.setstate(states[2])


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
