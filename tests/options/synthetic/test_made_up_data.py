"""Data made up from a seed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lockstep.datamodules import DataModule
from lockstep.datamodules.random_regression import RandomRegression
from lockstep.datamodules.synthetic_images import SyntheticImages


def images(shape: tuple[int, int, int] = (3, 8, 8), **options: Any) -> SyntheticImages:
    return SyntheticImages(shape, num_classes=4, length=500, val_length=100, test_length=200, **options)


def regression(teacher: bool = True, noise: float = 0.1, length: int = 1000, **options: Any) -> RandomRegression:
    return RandomRegression(10, 3, length, val_length=100, test_length=1000, teacher=teacher, noise=noise, **options)


@pytest.mark.parametrize("make", [images, regression])
def test_made_up_data_is_the_seed_s(make: Callable[..., DataModule]) -> None:
    first, again, other = (make(seed=seed).splits for seed in (1, 1, 2))
    for split in ("train", "val", "test"):
        assert torch.equal(getattr(first, split).inputs, getattr(again, split).inputs)
        assert torch.equal(getattr(first, split).targets, getattr(again, split).targets)
        assert not torch.equal(getattr(first, split).inputs, getattr(other, split).inputs)
    assert not torch.equal(first.train.inputs[:100], first.val.inputs[:100])
