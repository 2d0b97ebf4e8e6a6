"""Random images, generated from the seed."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from lockstep.datamodules.base import DataModule, DataSpec, Splits


class SyntheticImages(DataModule):
    """uint8 images of any shape: each class is one random pattern, each image half its pattern and half noise."""

    def __init__(
        self, shape: tuple[int, int, int], num_classes: int, length: int, val_length: int, test_length: int, **loading: Any
    ) -> None:
        super().__init__(**loading)
        self.lengths = (length, val_length, test_length)
        self.spec = DataSpec(tuple(shape), num_classes)

    def load(self) -> Splits:
        generator = torch.Generator().manual_seed(self.seed)
        patterns = torch.randint(256, (self.spec.num_outputs, *self.spec.input_shape), generator=generator)
        return Splits(*(self._images(patterns, length, generator) for length in self.lengths))

    def _images(self, patterns: Tensor, length: int, generator: torch.Generator) -> TensorDataset:
        targets = torch.randint(len(patterns), (length,), generator=generator)
        images = torch.randint(256, (length, *patterns.shape[1:]), generator=generator, dtype=torch.uint8)
        halves = (patterns // 2).to(torch.uint8)
        for some, classes in zip(images.split(256), targets.split(256), strict=True):  # in parts, to limit memory
            some.floor_divide_(2).add_(halves[classes])
        return TensorDataset(images, targets)
