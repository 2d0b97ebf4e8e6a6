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


def test_synthetic_images_have_the_shape_and_number_asked_for() -> None:
    datamodule = images((3, 5, 7))
    assert datamodule.spec.input_shape == (3, 5, 7)
    assert datamodule.spec.num_outputs == 4
    assert datamodule.describe() == {"train": 500, "val": 100, "test": 200}
    for split in (datamodule.splits.train, datamodule.splits.val, datamodule.splits.test):
        assert split.inputs.shape[1:] == (3, 5, 7)
        assert split.inputs.dtype == torch.uint8
        assert set(split.targets.tolist()) == {0, 1, 2, 3}


def test_synthetic_images_can_be_learned() -> None:
    """The nearest of the class means of the training images is the right class of every test image."""
    splits = images().splits
    means = torch.stack([splits.train.inputs[splits.train.targets == k].float().mean(dim=0) for k in range(4)]).flatten(1)
    predicted = torch.cdist(splits.test.inputs.float().flatten(1), means).argmin(dim=1)
    assert torch.equal(predicted, splits.test.targets)


@pytest.mark.parametrize("make", [images, regression])
def test_made_up_data_is_the_seed_s(make: Callable[..., DataModule]) -> None:
    first, again, other = (make(seed=seed).splits for seed in (1, 1, 2))
    for split in ("train", "val", "test"):
        assert torch.equal(getattr(first, split).inputs, getattr(again, split).inputs)
        assert torch.equal(getattr(first, split).targets, getattr(again, split).targets)
        assert not torch.equal(getattr(first, split).inputs, getattr(other, split).inputs)
    assert not torch.equal(first.train.inputs[:100], first.val.inputs[:100])


def test_a_linear_fit_leaves_only_the_noise_of_a_teacher() -> None:
    # in the mean over 3000 test targets the squared noise has a relative deviation of sqrt(2 / 3000) = 2.6 %, and the
    # fit to 1000 samples of 10 features adds 1 %
    assert error_of_least_squares(regression(noise=0.1)) == pytest.approx(0.01, rel=0.1)
    assert error_of_least_squares(regression(noise=0.0)) < 1e-10


def error_of_least_squares(datamodule: DataModule) -> float:
    train, test = datamodule.splits.train, datamodule.splits.test
    fit = torch.linalg.lstsq(train.inputs.double(), train.targets.double()).solution
    return float((test.inputs.double() @ fit - test.targets).square().mean())
