"""A LightningModule that knows nothing of this package."""

from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional

from lockstep.models import Classifier


class Own(LightningModule):
    """With what depends on who computes it: torch's dropout, BatchNorm, a buffer that each step changes, a loss that couples the
    samples of a batch."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.RReLU(), nn.Dropout(0.2), nn.Linear(24, 10)
        )
        self.register_buffer("seen", torch.zeros(10))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        inputs, targets, *_ = batch
        features = self.net(inputs.float() / 16)
        self.seen.lerp_(features.detach().mean(dim=0), 0.1)
        coupled = functional.normalize(features) @ functional.normalize(features).T
        self.log("train/loss", loss := functional.cross_entropy(features, targets) + 0.1 * coupled.square().mean())
        return {"loss": loss + 0.01 * self.seen.square().sum()}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets, *_ = batch
        self.log("val/loss", functional.cross_entropy(self.net(inputs.float() / 16), targets))

    def configure_optimizers(self) -> Any:
        return torch.optim.RMSprop(self.parameters(), lr=1e-3, momentum=0.9)


class UsesRank(Classifier):
    """Whose loss depends, by one unit in the last place, on the process that computes it."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * (1 + self.global_rank * torch.finfo(loss.dtype).eps)
