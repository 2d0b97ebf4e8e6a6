"""A net for which more than `room` samples at once are too many, or whose activations take much memory without touching it."""

from typing import Any

import torch
from torch import Tensor

from lockstep.nets import MLP

GIB_PER_SAMPLE = 0.5


class Hungry(MLP):
    def __init__(self, *args: Any, room: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.room = room

    def forward(self, x: Tensor) -> Tensor:
        if self.room is not None:
            if len(x) > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory. Planted.")
            return super().forward(x)
        held = torch.empty(len(x), int(GIB_PER_SAMPLE * 2**30), dtype=torch.uint8)
        return super().forward(x) + held.new_zeros(1)
