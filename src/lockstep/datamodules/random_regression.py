"""Random vectors, generated from the seed."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from lockstep.datamodules.base import DataModule, DataSpec, Splits


class RandomRegression(DataModule):
    """Gaussian inputs. Targets are Gaussian noise, or the outputs of a fixed linear teacher plus noise, whose variance is then
    the lowest possible mean squared error."""

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

    def _pairs(self, weight: Tensor, length: int, generator: torch.Generator) -> TensorDataset:
        inputs = torch.randn(length, len(weight), generator=generator)
        noise = torch.randn(length, weight.shape[1], generator=generator)
        if not self.teacher:
            return TensorDataset(inputs, noise)
        # In float64, some rows at a time, because float32 results differ between processors.
        outputs = torch.cat([(rows.double() @ weight.double()).float() for rows in inputs.split(1 << 16)])
        return TensorDataset(inputs, outputs + self.noise * noise)
