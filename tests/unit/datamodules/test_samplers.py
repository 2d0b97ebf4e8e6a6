"""Which samples each rank takes: the same ones at any world size, each exactly once, each with its share."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from lockstep.datamodules.samplers import BatchIndices, EvalSampler, TrainSampler
from lockstep.errors import EpochTooShort

WORLDS = (1, 2, 3, 4)
LENGTHS = (*range(1, 14), 49, 100)


def make_samplers(length: int, batch_size: int, world_size: int, **options: Any) -> list[TrainSampler]:
    return [TrainSampler(length, batch_size, rank, world_size, **options) for rank in range(world_size)]


def epochs_at(world_size: int, drop_last: bool) -> Iterator[tuple[list[TrainSampler], list[list[BatchIndices]]]]:
    """The samplers of all ranks and what each draws, for every length, batch size and accumulation that makes a step."""
    for length, batch_size, accumulate, fewer in product(LENGTHS, (1, 2, 3, 5), (1, 2, 3), {0, 1, world_size - 1}):
        size = batch_size * world_size - fewer  # of all ranks, of which `fewer` have a sample less
        if size >= world_size and (not drop_last or length >= size * accumulate):
            given = {"accumulate": accumulate, "drop_last": drop_last, "samples_per_batch": size}
            ranks = make_samplers(length, batch_size, world_size, **given)
            yield ranks, [list(rank) for rank in ranks]


def steps(draws: list[list[BatchIndices]], accumulate: int) -> list[list[list[BatchIndices]]]:
    """Step by step, the draws of each rank: `accumulate` batches make a step, fewer at the end of an epoch."""
    starts = range(0, len(draws[0]), accumulate)
    return [[rank[start : start + accumulate] for rank in draws] for start in starts]


def join_ids(draws: list[BatchIndices]) -> list[int]:
    return [i for draw in draws for i in draw.ids.tolist()]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world_size", WORLDS)
def test_ranks_take_as_many_batches_and_share_out_the_epoch_exactly_once(world_size: int, drop_last: bool) -> None:
    for ranks, draws in epochs_at(world_size, drop_last):
        sampler = ranks[0]
        assert {len(rank) for rank in draws} == {len(rank) for rank in ranks} == {len(sampler)}
        taken = [i for rank in draws for i in join_ids(rank)]
        tail = sampler.length % sampler.global_batch_size if drop_last else 0  # all that drop_last leaves out
        assert len(taken) == sampler.samples_per_epoch == sampler.length - tail
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(sampler.length))


@pytest.mark.parametrize("world_size", WORLDS)
def test_drop_last_leaves_out_only_the_end_of_the_global_order(world_size: int) -> None:
    for ranks, draws in epochs_at(world_size, drop_last=True):
        whole = TrainSampler(ranks[0].length, 1, drop_last=False)  # one process, one sample a batch: the global order
        order = join_ids(list(whole))
        assert {i for rank in draws for i in join_ids(rank)} == set(order[: ranks[0].samples_per_epoch])


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world_size", WORLDS)
def test_each_step_is_the_mean_over_the_samples_that_one_process_takes_for_it(world_size: int, drop_last: bool) -> None:
    """DDP divides the sum over ranks by the world size, Lightning each batch's loss by `accumulate`; what is left of a
    step of n samples must be n * 1/n, in a full step and in the tail."""
    for ranks, draws in epochs_at(world_size, drop_last):
        sampler = ranks[0]
        alone = TrainSampler(sampler.length, sampler.global_batch_size, drop_last=drop_last)
        for step, whole in zip(steps(draws, sampler.accumulate), alone, strict=True):
            together = [draw for rank in step for draw in rank]
            assert set(join_ids(together)) == set(whole.ids.tolist())
            divisor = world_size * sampler.accumulate
            assert sum(len(draw.ids) * draw.loss_weight / divisor for draw in together) == pytest.approx(1, abs=1e-12)
            assert len({draw.loss_weight for draw in together}) == 1  # each sample counts the same


def test_ids_of_two_ranks_written_out() -> None:
    """7 samples in order, 2 ranks of 2: the global batches are 0 1 2 3 and 4 5 6."""
    first, second = ([draw.ids.tolist() for draw in rank] for rank in make_samplers(7, 2, 2, shuffle=False, drop_last=False))
    assert first == [[0, 2], [4, 6]]
    assert second == [[1, 3], [5]]


def test_accumulated_batches_and_their_tail_written_out() -> None:
    """15 samples in order, 2 ranks of 2, two batches a step: a global batch of 8, then a tail of 7 in two batches."""
    first, second = (list(rank) for rank in make_samplers(15, 2, 2, accumulate=2, shuffle=False, drop_last=False))
    assert [draw.ids.tolist() for draw in first] == [[0, 2], [4, 6], [8, 10], [12, 14]]
    assert [draw.ids.tolist() for draw in second] == [[1, 3], [5, 7], [9, 11], [13]]
    assert [draw.loss_weight for draw in first] == [4 / 8, 4 / 8, 4 / 7, 4 / 7]  # world * accumulate / samples of the step


def test_gradient_of_a_tail_is_the_mean_over_its_samples() -> None:
    """49 samples, global batch 48 on 2 ranks. The loss of sample i is i * w, its gradient i."""
    ranks = [list(rank) for rank in make_samplers(49, 24, 2, shuffle=False, drop_last=False)]
    assert [[len(draw.ids) for draw in rank] for rank in ranks] == [[24, 1], [24, 0]]  # as many batches, one empty
    gradients = []
    for step in range(2):
        by_rank = []
        for rank in ranks:
            w = torch.zeros((), dtype=torch.float64, requires_grad=True)
            losses = rank[step].ids.double() * w
            (losses.sum() * rank[step].loss_weight).backward()
            assert w.grad is not None
            by_rank.append(w.grad.item())
        gradients.append(by_rank)
    # step 0, share 2/48: the even numbers below 48 sum to 552, the odd ones to 576
    # step 1, share 2/1: rank 0 has sample 48, rank 1 nothing
    assert gradients == [[pytest.approx(23.0), pytest.approx(24.0)], [96.0, 0.0]]
    means = [sum(by_rank) / 2 for by_rank in gradients]  # what DDP makes of it
    assert means == [pytest.approx(23.5), 48.0]  # the mean of 0..47, and of 48 alone


def test_an_empty_draw_has_no_ids_and_the_share_of_its_step() -> None:
    draw = list(TrainSampler(49, 24, rank=1, world_size=2, drop_last=False))[1]
    assert draw.ids.shape == (0,)
    assert draw.ids.dtype == torch.int64
    assert draw.loss_weight == 2.0


def test_order_changes_with_the_epoch_and_with_the_seed_and_is_otherwise_the_same() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = TrainSampler(100, 10, seed=seed)
        sampler.set_epoch(epoch)
        assert {draw.epoch for draw in sampler} == {epoch}
        return join_ids(list(sampler))

    assert order(0, 3) == order(0, 3)
    orders = [order(seed, epoch) for seed, epoch in [(0, 0), (0, 1), (0, 2), (10, 0), (20, 0)]]
    assert all(sorted(ids) == list(range(100)) for ids in orders)
    assert len({tuple(ids) for ids in orders}) == 5
    assert all(ids != list(range(100)) for ids in orders)


def test_without_shuffle_the_order_is_the_data_s_own_in_every_epoch() -> None:
    sampler = TrainSampler(10, 5, shuffle=False)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert join_ids(list(sampler)) == list(range(10))


@pytest.mark.parametrize(
    ("length", "batch_size", "world_size", "accumulate", "message"),
    [
        (13, 8, 4, 1, "the global batch of 32 is larger than the training split of 13 samples; use at most 3"),  # 13 // 4
        (13, 14, 1, 1, "the global batch of 14 is larger than the training split of 13 samples; use at most 13"),
        (47, 8, 2, 3, "the global batch of 48 is larger than the training split of 47 samples; use at most 7"),  # 47 // 6
    ],
)
def test_a_split_smaller_than_the_global_batch_is_refused(
    length: int, batch_size: int, world_size: int, accumulate: int, message: str
) -> None:
    with pytest.raises(EpochTooShort) as refused:
        TrainSampler(length, batch_size, 0, world_size, accumulate)
    assert str(refused.value) == f"datamodule.batch_size={batch_size}: {message}, or datamodule.drop_last=false"
    assert len(TrainSampler(length, int(message.rpartition(" ")[2]), 0, world_size, accumulate)) == accumulate
    assert len(TrainSampler(length, batch_size, 0, world_size, accumulate, drop_last=False)) > 0


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("length", range(1, 14))
def test_evaluation_takes_each_sample_exactly_once(length: int, world_size: int) -> None:
    for batch_size in (1, 2, 3, 64):
        ranks = [EvalSampler(length, batch_size, rank, world_size) for rank in range(world_size)]
        draws = [list(rank) for rank in ranks]
        assert sorted(i for rank in draws for i in join_ids(rank)) == list(range(length))
        expected = -(-length // (batch_size * world_size))
        assert [len(rank) for rank in draws] == [len(rank) for rank in ranks] == [expected] * world_size
        assert all(len(draw.ids) <= batch_size and draw.loss_weight == 1.0 for rank in draws for draw in rank)


def test_evaluation_has_one_order_at_any_batch_and_world_size() -> None:
    order = join_ids(list(EvalSampler(100, 7)))
    assert order == join_ids(list(EvalSampler(100, 64)))
    first, second = ([draw.ids for draw in EvalSampler(100, 5, rank, 2)] for rank in (0, 1))
    together = [
        i for pair in zip(first, second, strict=True) for ids in zip(*pair, strict=True) for i in torch.stack(ids).tolist()
    ]
    assert together == order


def test_the_first_evaluated_samples_are_of_all_classes_of_sorted_data() -> None:
    """1,000 samples, the first hundred of class 0 and so on; of 50 drawn at random a class is left out with 10 * 0.9^50 = 5 %."""
    first = next(iter(EvalSampler(1000, 50))).ids
    assert set((first // 100).tolist()) == set(range(10))


def test_both_are_distributed_samplers_which_lightning_leaves_alone() -> None:
    assert isinstance(TrainSampler(10, 2, rank=1, world_size=2), DistributedSampler)
    assert isinstance(EvalSampler(10, 2, rank=1, world_size=2), DistributedSampler)
