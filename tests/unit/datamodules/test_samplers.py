"""Which samples each rank takes: the same ones at any world size, each exactly once, each with its share."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from lockstep.datamodules.seeded import EpochOrder, GlobalBatches
from lockstep.plain_lightning.callback import weight_of
from lockstep.plain_lightning.loaders import SharedSampler, shared_loader

WORLDS = (1, 2, 3, 4)
Batches = list[list[int]]


class Numbers(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, numbers: list[int]) -> list[int]:
        return numbers


def samplers(length: int, size: int, world_size: int, training: bool = True, **order: Any) -> list[SharedSampler]:
    """Return the samplers of all ranks, for batches of `size` samples over all of them."""
    batches = GlobalBatches(EpochOrder(length, length, **{"seed": 0, **order}), size, drop_last=False)
    loader = DataLoader(Numbers(length), batch_size=None, sampler=batches)
    shared: Any = [shared_loader(loader, (rank, world_size), 0, training) for rank in range(world_size)]
    return [one.sampler for one in shared]


def draws(sampler: SharedSampler) -> Batches:
    """The samples of each batch, without dummies."""
    batches = list(sampler)
    assert len(batches) == len(sampler)
    return [batch[: sampler.samples_in(number)[0]] for number, batch in enumerate(batches)] if sampler.training else batches


def every(training: bool, world_size: int) -> Iterator[tuple[list[SharedSampler], list[Batches]]]:
    for length, size in product((*range(4, 14), 49, 100), (4, 5, 6, 12)):
        ranks = samplers(length, size, world_size, training)
        yield ranks, [draws(rank) for rank in ranks]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("world_size", WORLDS)
def test_ranks_take_as_many_batches_and_share_out_the_epoch_exactly_once(world_size: int, training: bool) -> None:
    for ranks, taken in every(training, world_size):
        assert len({len(rank) for rank in taken}) == 1
        assert sorted(number for rank in taken for batch in rank for number in batch) == [*range(ranks[0].length)]
        assert training or all(batch for rank in taken for batch in rank)  # collectives of a validation step meet


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_batch_of_all_ranks_is_one_process_s_and_weighs_as_its_mean(world_size: int) -> None:
    for ranks, taken in every(True, world_size):
        alone = draws(samplers(ranks[0].length, ranks[0].global_batch_size, 1)[0])
        for number, whole in enumerate(alone):
            together = [rank[number] for rank in taken]
            assert sorted(index for batch in together for index in batch) == sorted(whole)
            weights = [weight_of(number, [rank], 1, len(alone)).in_batch for rank in ranks]
            # DDP divides the sum by the world size; a rank's mean divides by its number of samples
            shares = [weight / world_size / len(batch) for weight, batch in zip(weights, together, strict=True) if batch]
            assert shares == pytest.approx([1 / len(whole)] * len(shares), rel=1e-12)
            assert all(weight == 0 for weight, batch in zip(weights, together, strict=True) if not batch)


def test_ids_of_two_ranks_written_out() -> None:
    """7 samples in order, 2 ranks of 2: the global batches are 0 1 2 3 and 4 5 6; of 5, they are 0 1 2 3 4 and 5 6."""
    assert [draws(rank) for rank in samplers(7, 4, 2, seed=None)] == [[[0, 2], [4, 6]], [[1, 3], [5]]]
    assert [draws(rank) for rank in samplers(7, 5, 2, seed=None)] == [[[0, 2, 4], [5]], [[1, 3], [6]]]


def test_order_changes_with_the_epoch_and_with_the_seed_and_is_otherwise_the_same() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = samplers(100, 10, 1, seed=seed)[0]
        sampler.set_epoch(epoch)
        assert {batch.epoch for batch in sampler} == {epoch}
        return [number for batch in draws(sampler) for number in batch]

    assert order(0, 3) == order(0, 3)
    orders = [order(seed, epoch) for seed, epoch in [(0, 0), (0, 1), (0, 2), (10, 0), (20, 0)]]
    assert all(sorted(ids) == list(range(100)) for ids in orders)
    assert len({tuple(ids) for ids in orders}) == 5
    assert all(ids != list(range(100)) for ids in orders)


def test_an_order_takes_the_first_of_its_samples_and_may_be_changed() -> None:
    order = EpochOrder(5, 4, reorder=lambda ids, epoch: (ids + epoch) % 5)
    order.set_epoch(2)
    assert list(order) == [2, 3, 4, 0]
    assert len(order) == 4


def test_a_batch_after_the_last_one_of_an_epoch_has_a_weight() -> None:
    """A limited epoch whose batches have grown on resumption may begin there; its weight was 0 / 0."""
    assert weight_of(2, [samplers(20, 4, 1)[0]], 1, 2).in_step == 1
