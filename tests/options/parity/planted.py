"""Models and data in which N processes are not one, each for one reason: of Lockstep's kinds, and of plain Lightning's."""

import time
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchmetrics import MeanMetric

from lockstep.datamodules.base import DataSpec
from lockstep.datamodules.synthetic_images import SyntheticImages
from lockstep.models import Classifier
from lockstep.nets import MLP


def world() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class MeanOfMeans(Classifier):
    """Its validation loss is the mean over batches and processes."""

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("val/loss", loss, on_epoch=True, sync_dist=True, batch_size=1)
        return loss


class ScaledRate(Classifier):
    """The learning rate times the world size."""

    def configure_optimizers(self) -> Any:
        configured = super().configure_optimizers()
        for group in configured["optimizer"].param_groups:
            group["lr"] *= self.trainer.world_size
        return configured | {"lr_scheduler": torch.optim.lr_scheduler.ConstantLR(configured["optimizer"], 1.0)}


class UsesRank(Classifier):
    """Whose loss depends, by one unit in the last place, on the process that computes it."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * (1 + self.global_rank * torch.finfo(loss.dtype).eps)


class Net(MLP):
    """torch's own dropout, or an error."""

    def __init__(self, defect: str = "", **net: Any) -> None:
        super().__init__(**net)
        self.defect = defect

    def forward(self, x: Tensor) -> Tensor:
        if self.defect == "fails":
            raise ValueError("planted")
        return super().forward(functional.dropout(x, 0.3, self.training) if self.defect == "dropout" else x)


class AnotherTail(SyntheticImages):
    """Several processes have a step more in an epoch than one, as with a sampler that fills up."""

    def train_dataloader(self) -> Any:
        self.drop_last = world()[1] == 1
        return super().train_dataloader()


class Rows(LightningDataModule):
    """16 rows of 4 numbers and 2 targets to train with, 12 to validate; in order, every process its own."""

    spec = DataSpec((4,), 2)

    def __init__(self, batch_size: int = 4, **_: Any) -> None:
        super().__init__()
        self.batch_size = batch_size
        rows = torch.randn(28, 6, generator=torch.Generator().manual_seed(0))
        self.train, self.val = (TensorDataset(part[:, :4], part[:, 4:]) for part in (rows[:16], rows[16:]))

    def train_dataloader(self, data: Any = None) -> Any:
        data, (rank, size) = data or self.train, world()
        sampler = DistributedSampler(data, num_replicas=size, rank=rank, shuffle=False)
        return DataLoader(data, batch_size=self.batch_size, sampler=sampler)

    def val_dataloader(self) -> Any:
        return self.train_dataloader(self.val)

    test_dataloader = val_dataloader


class Plain(LightningModule):
    """A linear model, a mean squared error, and a torchmetrics mean, which adds in float32; and one defect."""

    centre: Tensor

    def __init__(self, defect: str = "", **_: Any) -> None:
        super().__init__()
        self.defect, self.mean = defect, MeanMetric()
        self.layer: Any = nn.Linear(4, 2)
        if defect == "schedule":
            self.register_buffer("centre", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.layer(x)
        return self.seen

    def loss(self, batch: Any) -> Tensor:
        outputs, targets = self(batch[0]), batch[1]
        return functional.mse_loss(outputs, targets, reduction="sum" if self.defect == "a sum" else "mean")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trainer.should_stop |= self.defect == "ends"
        if self.defect == "branches" and world() == (1, 2):  # into something for which the first process never comes
            time.sleep(60 * batch_idx)
        loss = self.loss(batch)
        if self.defect != "logs nothing":
            self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.defect == "noise in gradients":
            self.layer.bias.grad += 0.01 * torch.randn(2)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.defect == "logs nothing":
            return
        errors = (self(batch[0]) - batch[1]).square().sum(dim=1)
        self.mean.update(errors)
        self.log("val/loss", self.mean)
        if self.defect == "logged alone" and self.global_rank == 1:
            self.log("val/alone", errors.mean(), batch_size=1)

    def on_validation_epoch_end(self) -> None:
        """Lightning calls the module's own hook last."""
        if self.defect == "schedule":
            self.centre.lerp_(self.seen.mean(dim=0), 0.1)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        if self.defect != "logs nothing":
            self.log("test/loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        """The schedule ends after fewer steps on more processes."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        if self.defect != "schedule":
            return optimizer
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 2 else 1 - step * world()[1] / 9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class BiasBeforeNorm(Plain):
    """A layer that is not trained; then torch's default, a bias that the norm takes away again: its gradients are rounding."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        frozen = nn.Linear(4, 4).requires_grad_(False)
        self.layer = nn.Sequential(frozen, nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        nn.init.zeros_(self.layer[1].bias)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)
