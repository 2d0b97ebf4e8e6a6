"""Data made up from the seed."""

from typing import Any

import torch
from torch import Tensor

from lockstep.datamodules.base import DataModule, DataSpec, Splits
from lockstep.datamodules.batches import InMemory


class SyntheticImages(DataModule):
    """uint8 images of any shape: each class is one random pattern, each image half its pattern and half noise.

    Args:
        shape: channels, height, width.
        length, val_length, test_length: samples in the three splits.
    """

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

    def _images(self, patterns: Tensor, length: int, generator: torch.Generator) -> InMemory:
        targets = torch.randint(len(patterns), (length,), generator=generator)
        images = torch.randint(256, (length, *patterns.shape[1:]), generator=generator, dtype=torch.uint8)
        for target, pattern in enumerate(patterns):  # class by class: half the patterns of all images would not fit
            images[targets == target] = images[targets == target] // 2 + (pattern // 2).to(torch.uint8)
        return InMemory(images, targets)


class RandomRegression(DataModule):
    """Gaussian inputs; targets are Gaussian noise, or a fixed linear teacher's answers with noise added.

    Args:
        teacher: false gives targets that have nothing to do with the inputs.
        noise: standard deviation added to the teacher's answers; the least mean squared error is its square.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        length: int,
        val_length: int,
        test_length: int,
        teacher: bool,
        noise: float,
        **loading: Any,
    ) -> None:
        super().__init__(**loading)
        self.lengths, self.teacher, self.noise = (length, val_length, test_length), teacher, noise
        self.spec = DataSpec((in_features,), out_features)

    def load(self) -> Splits:
        generator = torch.Generator().manual_seed(self.seed)
        in_features, out_features = self.spec.input_shape[0], self.spec.num_outputs
        weight = torch.randn(in_features, out_features, generator=generator) / in_features**0.5
        return Splits(*(self._pairs(weight, length, generator) for length in self.lengths))

    def _pairs(self, weight: Tensor, length: int, generator: torch.Generator) -> InMemory:
        inputs = torch.randn(length, len(weight), generator=generator)
        noise = torch.randn(length, weight.shape[1], generator=generator)
        return InMemory(inputs, inputs @ weight + self.noise * noise if self.teacher else noise)
