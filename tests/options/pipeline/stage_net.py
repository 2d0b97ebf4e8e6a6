"""A net of a user's own that can be cut, with noise that is counted from the samples."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from lockstep.nets import Dropout


class Residual(nn.Module):
    stage_ends = (("embed",), ("head",))

    def __init__(self, input_shape: Sequence[int], num_outputs: int, width: int = 8, depth: int = 4, p: float = 0.3) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width))
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh(), Dropout(p)) for _ in range(depth))
        self.head = nn.Linear(width, num_outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.stage(inputs, None, range(len(self.layers)))

    def stage(self, inputs: Tensor, x: Tensor | None, layers: range) -> Tensor:
        hidden: Tensor = self.embed(inputs) if x is None else x
        for number in layers:
            hidden = hidden + self.layers[number](hidden)
        return self.head(hidden) if layers.stop == len(self.layers) else hidden
