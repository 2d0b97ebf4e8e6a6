"""Streams: who takes which sample, and what is refused."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from plain_lightning import DigitsData
from ranks import in_ranks
from test_plain_lightning import fitted
from torch.utils.data import DataLoader, IterableDataset

from lockstep.errors import ConfigError
from lockstep.plain_lightning.streams import (
    SHORTER,
    UNWEIGHTED,
    Shard,
    in_step,
    is_stream,
    sharded,
    share_stream,
)


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(26)


def load_batches(rank: int, ranks: int, workers: int = 0, **options: Any) -> list[list[int]]:
    loader = DataLoader(Shard(Numbers(), **options), 4, num_workers=workers)
    share_stream(loader, (rank, ranks), "train_dataloader")
    return [batch.tolist() for batch in loader]


def test_the_batches_of_all_ranks_are_those_of_one_process() -> None:
    assert load_batches(0, 1)[-1] == [24, 25]
    assert load_batches(0, 1, workers=2) == load_batches(0, 1)
    assert [load_batches(rank, 2, workers=2) for rank in range(2)] == [load_batches(rank, 2) for rank in range(2)]
    assert load_batches(0, 3)[0] == [0, 3, 6, 9]
    whole = [
        sorted(sample for batch in batches for sample in batch)
        for batches in zip(*(load_batches(rank, 3) for rank in range(3)), strict=True)
    ]
    assert whole == [list(range(12)), list(range(12, 24))]  # there is no third sample for 24 and 25
    assert [load_batches(rank, 3, drop_last=False)[2:] for rank in range(3)] == [[[24]], [[25]], []]


def test_a_stream_that_each_process_would_read_whole_is_refused() -> None:
    loader = DataLoader(Numbers(), 4)
    assert is_stream(loader)
    share_stream(loader, (0, 1), "train_dataloader")
    with pytest.raises(ConfigError, match=r"^trainer\.devices=2: each process would read the whole Numbers of train_dataloader"):
        share_stream(loader, (1, 2), "train_dataloader")
    with pytest.raises(ConfigError, match="the whole generator of val_dataloader"):
        share_stream((batch for batch in ()), (1, 2), "val_dataloader")
    (loader,) = CombinedLoader([]).flattened
    share_stream(loader, (1, 2), "val_dataloader")  # Lightning's way to say that there is no validation


def test_a_stream_says_that_it_is_divided() -> None:
    shard = Shard(Numbers())
    share_stream(DataLoader(shard, 4), (1, 2), "train_dataloader")
    assert shard.share == (1, 2)
    share_stream(sharded(DataLoader(Numbers(), 4)), (1, 2), "train_dataloader")
    by_node: Any = Numbers()
    by_node._distributed = SimpleNamespace(rank=1, world_size=2)  # as datasets.distributed.split_dataset_by_node leaves it
    share_stream(DataLoader(by_node, 4), (1, 2), "train_dataloader")
    with pytest.raises(ConfigError):
        share_stream(DataLoader(by_node, 4), (0, 2), "train_dataloader")


class Own(IterableDataset[int]):
    """Each process's own samples; twice as many in the second epoch as in the first."""

    def __init__(self, samples: int) -> None:
        self.samples, self.left = samples, 0

    def __iter__(self) -> Iterator[int]:
        for sample in range(self.samples):
            self.left = self.samples - sample - 1
            yield sample
        self.samples *= 2


def two_epochs(rank: int, _: int, samples: list[int]) -> tuple[list[int], list[str], int]:
    said: list[str] = []
    loader = in_step(DataLoader(stream := Own(samples[rank]), 4), said.append)
    return [len(list(loader)) for _ in range(2)], sorted({*said}), stream.left


def test_an_epoch_of_streams_ends_with_the_shortest(tmp_path: Path) -> None:
    """No process waits for another one's step, and the next epoch is of the whole of each stream."""
    assert in_ranks(2, partial(two_epochs, samples=[8, 8]), tmp_path) == [([2, 4], [], 0)] * 2
    assert in_ranks(2, partial(two_epochs, samples=[20, 8]), tmp_path) == [([2, 4], [SHORTER], 0)] * 2
    assert in_ranks(2, partial(two_epochs, samples=[7, 8]), tmp_path) == [([2, 4], [UNWEIGHTED], 0)] * 2


def same_loader(rank: int, _: int) -> list[bool]:
    shard = Shard(Numbers(), drop_last=True)
    return [in_step(loader, print) is loader for loader in (DataLoader(shard, 4), range(3), range(3 + rank))]


def test_processes_that_have_as_many_batches_do_not_ask_each_other(tmp_path: Path) -> None:
    assert in_ranks(2, same_loader, tmp_path) == [[True, True, False]] * 2


@pytest.mark.parametrize(("loader", "samples"), [("train_dataloader", 8), ("val_dataloader", 9)])
def test_an_evaluation_takes_each_sample_of_a_stream_once(loader: str, samples: int) -> None:
    stream = Shard(Numbers())
    share_stream(DataLoader(stream), (0, 3), loader)
    assert len(list(stream)) == samples


def test_the_library_datasets_says_so_as_is_expected_here() -> None:
    datasets = pytest.importorskip("datasets")
    distributed = pytest.importorskip("datasets.distributed")
    stream = datasets.Dataset.from_dict({"x": [1, 2, 3, 4]}).to_iterable_dataset(num_shards=2)
    share_stream(DataLoader(distributed.split_dataset_by_node(stream, rank=1, world_size=2)), (1, 2), "train_dataloader")


class Played(DigitsData):
    """A stream that is made while it is read, and emptied at its end."""

    def train_dataloader(self) -> Any:
        self.seen: list[Any] = []
        return DataLoader(Experience(self.play), 8)

    def play(self) -> Iterator[Any]:
        self.seen += [self.train[place] for place in range(64)]
        yield from self.seen
        self.seen.clear()


class Experience(IterableDataset[Any]):
    def __init__(self, play: Callable[[], Iterator[Any]]) -> None:
        self.play = play

    def __iter__(self) -> Iterator[Any]:
        return self.play()


def test_a_stream_is_begun_once_in_each_epoch(tmp_path: Path) -> None:
    assert fitted(tmp_path, "datamodule._target_=test_streams.Played").global_step == 2 * 64 // 8
