"""Means over samples that come out the same at any world size."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric


class Sums(NamedTuple):
    """Sums of the values of samples: `totals` (names,) in float64, and the number of samples."""

    totals: Tensor
    samples: int


class SampleMean(Metric):
    """Sums of per-sample values in float64 and their count; summed over the ranks, then divided, once.

    A mean of per-batch or per-rank means would weigh samples by the batch they happen to be in.
    """

    full_state_update = False
    sums: Tensor
    count: Tensor

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        self.add_state("sums", torch.zeros(len(names), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, values: dict[str, Tensor] | Sums) -> None:
        """Add one (n,) tensor for each name, or their sums."""
        if not isinstance(values, Sums):
            stacked = torch.stack([values[name].detach() for name in self.names])  # in one type that holds all of theirs
            values = Sums(stacked.sum(dim=1, dtype=torch.float64), stacked.shape[1])
        self.sums.add_(values.totals)
        self.count.add_(values.samples)

    def compute(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.sums / self.count, strict=True))
