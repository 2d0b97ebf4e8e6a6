"""Dropout that drops the same elements of a sample on one process and on many."""

import torch
from torch import Tensor, nn

from lockstep.counter_rng import mix


class Dropout(nn.Dropout):
    """torch.nn.Dropout whose mask is counted from (seed, epoch, layer, sample id, element).

    `count` tells it the samples of the next batch, which the callback CounterBasedRandomness does in any LightningModule
    whose batches have `ids`; without it, it is torch.nn.Dropout. Used twice in one step, it drops the same elements twice:
    give each place a layer of its own.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        self.keys: Tensor | None = None

    def count(self, keys: Tensor) -> None:
        """Random integers (n,), int64 on the device, one per sample of the batch: see lockstep.counter_rng.random_bits."""
        self.keys = keys

    def forward(self, input: Tensor) -> Tensor:
        """(n, ...) to the same shape: elements zeroed with probability p, the others divided by 1 - p."""
        if not self.training or self.p == 0:
            return input
        if self.keys is None:
            return super().forward(input)
        if not len(self.keys):
            return input  # of dummy inputs, on a process without a sample: they come to nothing
        if len(self.keys) != len(input):
            raise ValueError(f"dropout of {len(input)} rows in a batch of {len(self.keys)} samples: the batch must come first")
        elements = mix(torch.arange(input[0].numel(), device=input.device))
        bits = mix(self.keys[:, None] + elements)  # uniform over the signed 64-bit integers
        kept = (bits >= round((self.p - 0.5) * 2**64)) if self.p < 1 else torch.zeros_like(bits, dtype=torch.bool)
        scale = 0.0 if self.p == 1 else 1 / (1 - self.p)
        return input * (kept.view(input.shape) * scale).to(input.dtype)
