"""The samples that take part in an epoch; tests/options/parity compares a training by them on several processes and on one."""

from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from lockstep.datamodules import Digits
from lockstep.datamodules.curriculum import Curriculum, distance_to_class_mean, step
from lockstep.datamodules.seeded import EpochOrder, GlobalBatches
from lockstep.plain_lightning.loaders import shared_loader

LENGTH = 40
HARDNESS = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(5))  # of sample i, without ties
DATA = TensorDataset(torch.arange(float(LENGTH)).view(-1, 1), torch.arange(LENGTH) % 2)


def order(epoch: int, reorder: Any) -> list[int]:
    """Return the order of an epoch's samples."""
    batches = GlobalBatches(EpochOrder(LENGTH, LENGTH, seed=0, reorder=reorder), 8, drop_last=False)
    sampler: Any = shared_loader(DataLoader(DATA, None, sampler=batches), (0, 1), 0, training=True).sampler
    sampler.set_epoch(epoch)
    return [int(number) for batch in sampler for number in batch]


def test_in_a_step_the_easiest_are_taken_equally_often_until_all_are() -> None:
    reorder: Any = Curriculum(lambda _: HARDNESS, partial(step, start=0.25), epochs=2).reorder(DATA)
    for epoch in (0, 1):
        taken = torch.tensor(order(epoch, reorder)).bincount(minlength=LENGTH)
        assert torch.equal(taken, torch.where(HARDNESS < 10, 4, 0))
    assert order(0, reorder) != order(1, reorder)
    assert order(2, reorder) == order(2, None)
    assert sorted(order(2, reorder)) == list(range(LENGTH))


def test_a_datamodule_trains_by_it() -> None:
    half = Curriculum(distance_to_class_mean, partial(step, start=0.5), 1)
    digits = Digits(batch_size=100, pin_memory=False, curriculum=half, seed=1)
    seen = torch.tensor([number for batch in digits.train_dataloader().sampler for number in batch]).unique()  # pyright: ignore
    distances = distance_to_class_mean(digits.splits.train)
    assert distances[seen].max() <= distances.median()
