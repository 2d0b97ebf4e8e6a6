"""Fully connected layers."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from lockstep.noise import Dropout


class MLP(nn.Module):
    """A net that flattens, then has linear layers with ReLU and dropout between them; without hidden layers one linear map."""

    def __init__(self, input_shape: Sequence[int], num_outputs: int, hidden: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        if any(width < 1 for width in hidden):
            raise ValueError(f"hidden={list(hidden)}: has a layer without units; use widths of at least 1")
        widths = [math.prod(input_shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *input_shape) to (n, num_outputs)."""
        return self.layers(x)
