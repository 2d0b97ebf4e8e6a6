"""From draws to batches, for every kind of dataset."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from lockstep.datamodules.augment import CropFlip
from lockstep.datamodules.batches import Batches
from lockstep.datamodules.seeded import Draws

LENGTH = 20
INPUTS = torch.arange(LENGTH * 1 * 4 * 4).to(torch.uint8).view(LENGTH, 1, 4, 4)
TARGETS = torch.arange(LENGTH) % 3


class OneByOne(Dataset[tuple[Tensor, int]]):
    """The plainest dataset: single samples, Python numbers as targets."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return INPUTS[index], int(TARGETS[index])


class CountedFetches(OneByOne):
    """Fetches all at once, as a list of samples; says how often."""

    def __init__(self) -> None:
        self.fetches = 0

    def __getitems__(self, ids: Sequence[int]) -> list[tuple[Tensor, int]]:
        self.fetches += 1
        return [self[i] for i in ids]


DATASETS = {
    "in memory": TensorDataset(INPUTS, TARGETS),
    "a subclass with transforms": type("Own", (TensorDataset,), {"__getitem__": OneByOne.__getitem__})(INPUTS.flip(0), TARGETS),
    "single samples": OneByOne(),
    "lists": CountedFetches(),
    "Subset of single samples": Subset(OneByOne(), range(LENGTH)),
    "Subset of tensors": Subset(TensorDataset(INPUTS.flip(0), TARGETS.flip(0)), range(LENGTH - 1, -1, -1)),
}


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS.keys())
def test_a_list_of_samples_becomes_a_batch(dataset: Any) -> None:
    inputs, targets = Batches(dataset)[Draws([3, 0, 19], 5, range(3))]
    assert torch.equal(inputs, INPUTS[[3, 0, 19]])
    assert torch.equal(targets, TARGETS[[3, 0, 19]])


def test_a_batch_is_fetched_at_once_where_the_dataset_can() -> None:
    dataset = CountedFetches()
    assert len(Batches(dataset)[range(10)][0]) == 10
    assert dataset.fetches == 1


def test_augmentation_is_given_the_numbers_and_the_epoch() -> None:
    augment = CropFlip(crop=1, flip=True, seed=3)
    batches = Batches(TensorDataset(INPUTS, TARGETS), augment=augment)
    inputs, _ = batches[Draws([4, 9], 6, range(2))]
    assert torch.equal(inputs, augment(INPUTS[[4, 9]], torch.tensor([4, 9]), 6))
    assert not torch.equal(inputs, INPUTS[[4, 9]])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("shape", [(3, 4), (), (300, 1000)], ids=["small", "numbers", "large"])
def test_a_batch_in_memory_has_the_bits_of_its_samples(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    data = torch.randint(0, 2, (20, *shape)).to(dtype)
    for kept in (data, data[::2]):  # whose samples do not lie side by side
        for ids in ([3, 0, 9], [5]):
            inputs, _ = Batches(TensorDataset(kept, torch.arange(len(kept))))[ids]
            assert inputs.dtype == dtype
            assert torch.equal(inputs, torch.stack([kept[i] for i in ids]))
