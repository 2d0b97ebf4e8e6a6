"""Small data sets made up from a seed."""

from typing import Any

import torch
from torch import Tensor

from lockstep.datamodules import DataModule, DataSpec, InMemory, Splits


class Images(DataModule):
    """uint8 images of classes, all noise."""

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 8, 8),
        num_classes: int = 4,
        length: int = 500,
        val_length: int = 100,
        test_length: int = 200,
        **loading: Any,
    ) -> None:
        super().__init__(**loading)
        self.lengths, self.spec = (length, val_length, test_length), DataSpec(tuple(shape), num_classes)

    def load(self) -> Splits:
        generator = torch.Generator().manual_seed(self.seed)

        def drawn(length: int) -> InMemory:
            images = torch.randint(256, (length, *self.spec.input_shape), generator=generator, dtype=torch.uint8)
            return InMemory(images, torch.randint(self.spec.num_outputs, (length,), generator=generator))

        return Splits(*map(drawn, self.lengths))


class Vectors(DataModule):
    """Gaussian inputs and targets."""

    def __init__(self, in_features: int = 10, out_features: int = 3, length: int = 1000, **loading: Any) -> None:
        super().__init__(**loading)
        self.length, self.spec = length, DataSpec((in_features,), out_features)

    def load(self) -> Splits:
        generator = torch.Generator().manual_seed(self.seed)

        def drawn(length: int) -> InMemory:
            inputs: Tensor = torch.randn(length, *self.spec.input_shape, generator=generator)
            return InMemory(inputs, torch.randn(length, self.spec.num_outputs, generator=generator))

        return Splits(drawn(self.length), drawn(100), drawn(1000))
