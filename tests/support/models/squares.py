"""A LightningModule that says which batches it was given."""

from typing import Any

import torch
from lightning import LightningModule


class Squares(LightningModule):
    """Records its batches; the loss is a mean over a batch, of squares of differences from its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.register_buffer("count", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.count += 1
        self.seen.append(batch)
        values = batch[0]
        return {"loss": (values - values.mean()).square().mean()}
