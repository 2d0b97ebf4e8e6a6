"""The part of the data's preparation that belongs to the model, and is saved with it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lockstep.runs.shares import EqualBuffers

if TYPE_CHECKING:  # the import takes a second
    from sklearn.preprocessing import StandardScaler


class Preprocess(EqualBuffers, nn.Module):
    """Scale uint8 to 0..1, then standardise: (x - mean) / scale, per channel for images, per feature for other inputs.

    Mean and scale are 0 and 1 unless `fit` or a checkpoint sets them.
    """

    equal_buffers = ("mean", "scale")
    mean: Tensor
    scale: Tensor

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__()
        shape = (input_shape[0], 1, 1) if len(input_shape) == 3 else tuple(input_shape)
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self._is_identity = True
        self.register_load_state_dict_post_hook(Preprocess._look)

    def fit(self, scaler: "StandardScaler") -> None:
        """Copy the parameters of a fitted scaler, rounded to float32, so that they are the same at any precision."""
        for buffer, values in ((self.mean, scaler.mean_), (self.scale, scaler.scale_)):
            buffer.copy_(torch.as_tensor(values, dtype=torch.float32).reshape(buffer.shape))
        self._look()

    def _look(self, *_: Any) -> None:  # not in each step: a GPU would be waited for
        self._is_identity = bool((self.mean == 0).all() & (self.scale == 1).all())

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *input_shape), uint8 or float, to the same shape in the buffers' type."""
        values = x.to(self.mean.dtype, copy=True)
        if x.dtype == torch.uint8:
            values.div_(255)
        return values if self._is_identity else values.sub_(self.mean).div_(self.scale)
