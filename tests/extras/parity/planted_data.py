"""Data that knows nothing of Lockstep, for the modules of planted_equal.py, planted_unequal.py and planted_noise.py."""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningDataModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from lockstep.datamodules.base import DataSpec
from lockstep.extras.plain_lightning.streams import sharded


def world() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class Rows(LightningDataModule):
    """16 rows of 4 numbers and 2 targets to train with, 12 to validate; in order, every process its own."""

    spec = DataSpec((4,), 2)

    def __init__(self, batch_size: int, global_batch_size: int | None = None, **_: Any) -> None:
        super().__init__()
        self.batch_size, self.global_batch_size = batch_size, global_batch_size
        rows = torch.randn(28, 6, generator=torch.Generator().manual_seed(0))
        self.train, self.val = (TensorDataset(part[:, :4], part[:, 4:]) for part in (rows[:16], rows[16:]))

    @property
    def size(self) -> int:
        accumulated = getattr(self.trainer, "accumulate_grad_batches", 1)
        return self.batch_size if self.global_batch_size is None else self.global_batch_size // world()[1] // accumulated

    def loader(self, dataset: Any, **options: Any) -> Any:
        rank, size = world()
        sampler = DistributedSampler(dataset, num_replicas=size, rank=rank, shuffle=False)
        return DataLoader(dataset, batch_size=self.size, sampler=sampler, **options)

    def train_dataloader(self) -> Any:
        return self.loader(self.train)

    def val_dataloader(self) -> Any:
        return self.loader(self.val)


class UnevenValidation(Rows):
    """11 rows to validate with, in a plain loader."""

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.val[:11]), batch_size=self.size)


class OwnLoader(DataLoader[Any]):
    """A class of the user's own, which Lightning shares out by itself."""


class PaddedValidation(Rows):
    """11 rows to validate with: the sampler that Lightning gives the loader repeats one on two processes."""

    def val_dataloader(self) -> Any:
        return OwnLoader(TensorDataset(*self.val[:11]), batch_size=self.size)


class ReadByWorkers(Rows):
    """By data workers, which are started as in a run: by the platform's own method, and not by that of their parent."""

    def train_dataloader(self) -> Any:
        assert multiprocessing.get_start_method() == multiprocessing.get_all_start_methods()[0]
        return self.loader(self.train, num_workers=1)


class TimeFirst(Rows):
    """Batches as (time, samples, features)."""

    def train_dataloader(self) -> Any:
        return self.loader(self.train, collate_fn=_time_first)

    def val_dataloader(self) -> Any:
        return self.loader(self.val, collate_fn=_time_first)


def _time_first(rows: list[Any]) -> tuple[Tensor, Tensor]:
    inputs, targets = (torch.stack(column) for column in zip(*rows, strict=True))
    return torch.stack([inputs * (time + 1) for time in range(3)]), targets


class Sentences(Rows):
    """Token ids in dictionaries, padded to the longest of a batch; targets there are torch's ignore_index."""

    def train_dataloader(self) -> Any:
        lengths = torch.randint(1, 6, (16,), generator=torch.Generator().manual_seed(2)).tolist()
        sentences = [torch.arange(length) + number for number, length in enumerate(lengths)]
        return self.loader(sentences, collate_fn=_padded)


def _padded(sentences: list[Tensor]) -> dict[str, Tensor]:
    ids, labels = (nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=value) for value in (0, -100))
    return {"ids": ids, "labels": labels % 3 if labels.min() >= 0 else torch.where(labels < 0, labels, labels % 3)}


class Stream(IterableDataset[Any]):
    """Rows of which every process takes its own, without a length."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        rank, size = world()
        return iter([self.rows[i] for i in range(rank, len(self.rows), size)])


class Streams(Rows):
    def loader(self, dataset: Any, **options: Any) -> Any:
        return DataLoader(sharded(Stream(dataset)), batch_size=self.size, **options)


class Dictionaries:
    """A loader of one's own: 16 numbers, of which every process takes its part."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        rank, size = world()
        return iter([{"ids": batch[rank::size]} for batch in torch.arange(16).split(self.batch_size * size)])


class BareLoader(Rows):
    def train_dataloader(self) -> Any:
        return sharded(Dictionaries(self.size))


class TestRows(Rows):
    def test_dataloader(self) -> Any:
        return self.loader(self.val)
