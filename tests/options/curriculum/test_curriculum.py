"""Which samples take part when: the same ones at any number of processes, from wherever an epoch is continued."""

from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lockstep.datamodules import DataModule, Digits
from lockstep.datamodules import curriculum as module
from lockstep.datamodules.curriculum import Curriculum, linear, step
from lockstep.datamodules.seeded import EpochOrder, GlobalBatches
from lockstep.plain_lightning.loaders import shared_loader

LENGTH = 40
HARDNESS = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(5))  # of sample i, without ties
WIDENING = partial(linear, start=0.2)


def data(length: int = LENGTH) -> TensorDataset:
    return TensorDataset(torch.arange(float(length)).view(-1, 1), torch.arange(length) % 2)


def of(pacing: Any = WIDENING, epochs: float = 2, scores: Tensor = HARDNESS) -> Any:
    return Curriculum(lambda _: scores, pacing, epochs).reorder(data())


def order(epoch: int, reorder: Any, ranks: int = 1, batch_size: int = 8, **options: Any) -> list[int]:
    """The global order of an epoch, put together from the batches of all ranks."""
    batches = GlobalBatches(EpochOrder(LENGTH, LENGTH, reorder=reorder, **{"seed": 0, **options}), batch_size, drop_last=False)
    loader = DataLoader(data(), None, sampler=batches)
    samplers: list[Any] = []
    for rank in range(ranks):
        shared: Any = shared_loader(loader, (rank, ranks), 0, training=True)
        shared.sampler.set_epoch(epoch)
        samplers.append(shared.sampler)
    together: list[int] = []
    for rows in zip(*samplers, strict=True):
        together += [int(rows[place % ranks][place // ranks]) for place in range(sum(map(len, rows)))]
    return together


def test_in_a_step_the_easiest_are_taken_equally_often_until_all_are() -> None:
    reorder = of(partial(step, start=0.25), epochs=2)
    for epoch in (0, 1):
        taken = torch.tensor(order(epoch, reorder)).bincount(minlength=LENGTH)
        assert torch.equal(taken, torch.where(HARDNESS < 10, 4, 0))
    assert order(0, reorder) != order(1, reorder)
    assert order(2, reorder) == order(2, None)
    assert sorted(order(2, reorder)) == list(range(LENGTH))


def test_any_number_of_processes_has_one_order() -> None:
    for ranks, epoch in product((2, 4), range(3)):
        assert order(epoch, of(), ranks) == order(epoch, of())


def test_a_datamodule_trains_by_it_and_says_which_it_is() -> None:
    def digits(start: float) -> DataModule:
        curriculum = Curriculum(module.distance_to_class_mean, partial(step, start=start), 1)
        return Digits(batch_size=100, pin_memory=False, curriculum=curriculum, seed=1)

    half = digits(0.5)
    seen = torch.tensor([number for batch in half.train_dataloader().sampler for number in batch]).unique()  # pyright: ignore
    distances = module.distance_to_class_mean(half.splits.train)
    assert distances[seen].max() <= distances.median()
