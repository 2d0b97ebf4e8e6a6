"""Dropout that drops the same elements of a sample on one process and on many."""

from torch import Tensor, nn

from lockstep.noise import drop


class Dropout(nn.Dropout):
    """torch.nn.Dropout whose mask is counted from (seed, epoch, layer, sample, element).

    `count` tells it the samples of the next batch, which the callback CounterBasedRandomness does in any LightningModule; without
    it, it is torch.nn.Dropout. Used twice in one step, it drops the same elements twice: give each place a layer of its own, or
    call lockstep.noise.dropout.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        self.keys: Tensor | None = None

    def count(self, keys: Tensor | None) -> None:
        """Set random integers (n,), int64 on the device, one per sample of the batch; see lockstep.counter_rng.random_bits."""
        self.keys = keys

    def forward(self, input: Tensor) -> Tensor:
        """Map (n, ...) to the same shape: elements zeroed with probability p, the others divided by 1 - p."""
        if not self.training or self.p == 0:
            return input
        if self.keys is None:
            return super().forward(input)
        if not len(self.keys):
            return input  # dummy inputs, on a process without a sample: their outputs are not used
        if len(self.keys) != len(input):
            raise ValueError(f"dropout of {len(input)} rows in a batch of {len(self.keys)} samples: the batch must come first")
        return drop(input, self.keys, self.p)
