"""Loaders of torch's own, shared out over ranks."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from lockstep.errors import ConfigError
from lockstep.plain_lightning.loaders import SharedSampler, shared_loader
from lockstep.plain_lightning.shared_loading import SharedLoading


def share_out(loader: DataLoader[Any], world_size: int, epoch: int = 0, training: bool = True) -> list[list[list[int]]]:
    """The samples of each batch of each rank."""
    ranks = []
    for rank in range(world_size):
        shared = shared_loader(loader, (rank, world_size), 3, training)
        assert shared is not None
        assert isinstance(shared.sampler, SharedSampler)
        shared.sampler.set_epoch(epoch)
        ranks.append([batch.tolist() for batch in shared])
    return ranks


def together(ranks: list[list[list[int]]]) -> list[list[int]]:
    return [sorted(sample for batch in batches for sample in batch) for batches in zip(*ranks, strict=True)]


def numbers(batch_size: int, length: int = 13, **options: Any) -> DataLoader[Any]:
    data: Any = range(length)
    return DataLoader(data, batch_size, **options)


class Turned(Sampler[int]):
    """Counts by the epoch that it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 13

    def __iter__(self) -> Iterator[int]:
        return ((sample + self.epoch) % 13 for sample in range(13))


WAYS: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "by a generator of its own": {"shuffle": True, "generator": torch.Generator()},
    "some more often": {"sampler": WeightedRandomSampler([1.0] * 6 + [3.0] * 7, 13)},
    "with replacement": {"sampler": RandomSampler(range(13), replacement=True, num_samples=13)},
    "by the epoch that it is told": {"sampler": Turned()},
    "shared out already": {"sampler": DistributedSampler(range(13), num_replicas=2, rank=1)},  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world_size", [2, 3])
def test_several_ranks_take_the_batches_of_one_each_sample_once(way: str, world_size: int) -> None:
    torch.rand(3)  # what was drawn before does not matter
    whole = [sorted(batch) for batch in share_out(numbers(6, **WAYS[way]), 1, epoch=2)[0]]
    ranks = share_out(numbers(6 // world_size, **WAYS[way]), world_size, epoch=2)
    *full, tail = together(ranks)
    assert full == whole[:2]
    assert set(tail) == set(whole[2])  # one sample, which the others take as a dummy
    if way != "in order":
        assert share_out(numbers(6, **WAYS[way]), 1, epoch=3)[0] != share_out(numbers(6, **WAYS[way]), 1, epoch=2)[0]


class Own(Sampler[int]):
    """Draws from a generator of its own."""

    def __init__(self, numbers: int = 13) -> None:
        self.numbers, self.random = numbers, np.random.default_rng(7)

    def __len__(self) -> int:
        return self.numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.permutation(self.numbers).tolist())


def test_a_sampler_with_a_generator_of_its_own_draws_each_epoch_once_wherever_a_run_begins() -> None:
    own = Own()
    expected = [list(own) for _ in range(4)]
    shared = SharedSampler(Own(), 2, (0, 1), 0, dropped=0, training=False)
    orders: list[list[int]] = []
    for epoch in (0, 0, 1, 3, 3):  # begun twice, and resumed
        shared.set_epoch(epoch)
        orders.append([sample for batch in shared for sample in batch])
    assert orders == [expected[epoch] for epoch in (0, 0, 1, 3, 3)]
    reloaded = SharedSampler(Own(), 2, (0, 1), 0, dropped=0, training=False)
    reloaded.begin_with(2)
    assert [sample for batch in reloaded for sample in batch] == expected[0]


class Lists(Dataset[Any]):
    """Takes all samples of a batch at once, as torch's notes on loading without automatic batching have it."""

    def __getitem__(self, samples: Any) -> torch.Tensor:
        return torch.tensor(samples)

    def __len__(self) -> int:
        return 13


@pytest.mark.parametrize("length", [13, 11])
def test_batches_that_a_sampler_draws_as_lists_are_shared_out_by_samples(length: int) -> None:
    """Whole lists were: where the last batch of all processes had fewer samples than two lists, these weighed alike."""

    def loader(batch_size: int) -> DataLoader[Any]:
        return DataLoader(Lists(), batch_size=None, sampler=BatchSampler(SequentialSampler(range(length)), batch_size, False))

    ranks = share_out(loader(2), 2)
    assert [rank[0] for rank in ranks] == [[0, 2], [1, 3]]
    *whole, tail = share_out(loader(4), 1)[0]
    assert together(ranks)[: len(whole)] == whole
    assert {*together(ranks)[-1]} == {*tail}
    assert sorted(s for rank in share_out(loader(2), 2, training=False) for batch in rank for s in batch) == [*range(length)]


def test_what_is_dropped_is_what_one_process_drops() -> None:
    assert together(share_out(numbers(2, 13, drop_last=True), 3)) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_evaluation_takes_each_sample_of_one_process_once_in_as_many_batches_on_every_rank(drop_last: bool) -> None:
    """With drop_last it left out up to a batch of all processes."""
    for length in range(3, 26):
        ranks = share_out(numbers(3, length, drop_last=drop_last), 3, training=False)
        kept = length - length % 3 if drop_last else length
        assert sorted(sample for rank in ranks for batch in rank for sample in batch) == list(range(kept))
        assert len({len(rank) for rank in ranks}) == 1
        assert all(batch for rank in ranks for batch in rank)


def test_fewer_samples_than_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^datamodule=2 sample\(s\): use at least 3, one for each process"):
        shared_loader(numbers(2, 2), (0, 3), 0, training=False)


def test_how_batches_are_loaded_stays_as_it_was() -> None:
    loader = numbers(2, collate_fn=tuple, timeout=5.0, num_workers=1, prefetch_factor=3)
    shared: Any = shared_loader(loader, (0, 1), 0, training=True)
    assert (shared.collate_fn, shared.timeout, shared.num_workers, shared.prefetch_factor) == (tuple, 5.0, 1, 3)
    assert shared.dataset.dataset is loader.dataset
    whole: Any = shared_loader(DataLoader(range(4), None), (1, 2), 0, training=True)  # pyright: ignore[reportArgumentType]
    assert (whole.batch_size, list(whole)) == (None, [1, 3])


class Collates(DataLoader[Any]):
    """As a graph library's."""

    def __init__(self, dataset: Any, batch_size: int, **options: Any) -> None:
        super().__init__(dataset, batch_size, collate_fn=torch.tensor, **options)


class NamedShares(DistributedSampler[int]):
    name = "as torch's"


class Named(BatchSampler):
    name = "as torch's"


def test_what_matters_is_how_batches_are_drawn_not_the_class() -> None:
    data: Any = range(8)
    shares, batches = NamedShares(data, num_replicas=2, rank=1, shuffle=False), Named(SequentialSampler(data), 2, drop_last=False)
    for loader in (Collates(data, 2), Collates(data, 2, sampler=shares), DataLoader(data, batch_sampler=batches)):
        assert together(share_out(loader, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


class Loader(DataLoader[Any]):
    """One of the user's own."""

    def __iter__(self) -> Any:
        return super().__iter__()


class Shares(DistributedSampler[int]):
    """Says in a way of its own which samples a process takes."""

    def __iter__(self) -> Any:
        return super().__iter__()


class Batches(BatchSampler):
    """And a way of its own to make batches."""

    def __iter__(self) -> Any:
        return super().__iter__()


def test_another_way_to_make_batches_is_left_as_it_is() -> None:
    data: Any = range(8)
    batches, shares = Batches(SequentialSampler(data), 2, False), Shares(data, 2, 1)
    for loader in (Loader(data), DataLoader(data, batch_sampler=batches), DataLoader(data, sampler=shares)):
        assert shared_loader(loader, (0, 2), 0, training=True) is None


@pytest.mark.parametrize("is_left", [True, False])
def test_use_distributed_sampler_false_leaves_loaders_as_they_are(is_left: bool) -> None:
    trainer = SimpleNamespace(distributed_sampler_kwargs={"rank": 1, "num_replicas": 2}, state=SimpleNamespace(fn="fit"))
    trainer._accelerator_connector = SimpleNamespace(use_distributed_sampler=not is_left)
    sharing, loader = SharedLoading(seed=0), numbers(2, 4)
    assert (sharing._share(trainer, loader, "val_dataloader", training=False) is loader) == is_left
    assert len(sharing.causes) == is_left


@pytest.mark.parametrize(("length", "own"), [(13, [(1, 1), (0, 1), (0, 1)]), (14, [(1, 2), (1, 2), (0, 2)]), (12, None)])
def test_the_share_of_a_tail_is_known(length: int, own: list[tuple[int, int]] | None) -> None:
    for rank in range(3):
        loader = shared_loader(numbers(2, length), (rank, 3), 0, training=True)
        assert loader is not None
        sampler: Any = loader.sampler
        assert sampler.samples_in(1) == (2, 6)
        assert own is None or sampler.samples_in(2) == own[rank]
        assert len(list(loader)) == len(loader) == (2 if own is None else 3)
