"""Small data sets made up from a seed."""

from typing import Any

from lockstep.datamodules.random_regression import RandomRegression
from lockstep.datamodules.synthetic_images import SyntheticImages


def images(shape: tuple[int, int, int] = (3, 8, 8), **options: Any) -> SyntheticImages:
    return SyntheticImages(shape, num_classes=4, length=500, val_length=100, test_length=200, **options)


def regression(teacher: bool = True, noise: float = 0.1, length: int = 1000, **options: Any) -> RandomRegression:
    return RandomRegression(10, 3, length, val_length=100, test_length=1000, teacher=teacher, noise=noise, **options)
