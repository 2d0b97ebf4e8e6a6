"""Draw an epoch's samples, and load each with the same random transforms on any number of processes, and after a resumption."""

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

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


def one_by_one(drawn: Sequence[Any]) -> list[Draw]:
    """Return each sample as a Draw. An evaluation's samples are bare indices, and always have the same place."""
    if isinstance(drawn, Draws):
        return [*map(Draw, drawn, repeat(drawn.epoch), drawn.places)]
    return [one if isinstance(one, Draw) else Draw(one, 0, zlib.crc32(repr(one).encode())) for one in drawn]


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
        """Load a sample; or, by a list, the batch of a dataset that is indexed by lists."""
        if not isinstance(drawn, list):
            return self.__getitems__([drawn])[0]
        draws = one_by_one(drawn)
        with isolate_rng(include_cuda=False):
            self._seed(draws[0])
            return self.dataset[[draw.index for draw in draws]]

    def __getitems__(self, drawn: Sequence[Any]) -> Any:
        root, draws = self.dataset, one_by_one(drawn)
        while type(root) is Subset:  # a Subset has `__getitems__` even if its dataset has not
            root = root.dataset
        if type(root) is TensorDataset:  # it has no transforms
            return [self.dataset[draw.index] for draw in draws]
        with isolate_rng(include_cuda=False):
            if hasattr(root, "__getitems__"):
                self._seed(draws[0])
                return self.dataset.__getitems__([draw.index for draw in draws])
            return [self._load(draw) for draw in draws]

    def _load(self, draw: Draw) -> Any:
        self._seed(draw)
        return self.dataset[draw.index]

    def _seed(self, draw: Draw) -> None:
        seed_generators(derive_seed(self.seed, draw.epoch, draw.place))


def seed_generators(seed: int) -> None:
    """Seed only the CPU generators; torch.manual_seed would query every kind of device."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def shuffled(length: int, seed: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))
