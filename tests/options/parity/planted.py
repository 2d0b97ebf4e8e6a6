"""Models and data of Lockstep's kinds in which N processes are not one, each for one reason."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.datamodules.synthetic_images import SyntheticImages
from lockstep.models import Classifier
from lockstep.nets import MLP


def world() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class LogsEveryStep(Classifier):
    """Its own process's loss at every step, as many do."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


class MeanOfMeans(Classifier):
    """Its validation loss is the mean over batches and processes."""

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("val/loss", loss, on_epoch=True, sync_dist=True, batch_size=1)
        return loss


class ScaledRate(Classifier):
    """The learning rate times the world size."""

    def configure_optimizers(self) -> Any:
        configured = super().configure_optimizers()
        for group in configured["optimizer"].param_groups:
            group["lr"] *= self.trainer.world_size
        return configured | {"lr_scheduler": torch.optim.lr_scheduler.ConstantLR(configured["optimizer"], 1.0)}


class Net(MLP):
    """torch's own dropout, or an error."""

    def __init__(self, defect: str = "", **net: Any) -> None:
        super().__init__(**net)
        self.defect = defect

    def forward(self, x: Tensor) -> Tensor:
        if self.defect == "fails":
            raise ValueError("planted")
        return super().forward(nn.functional.dropout(x, 0.3, self.training) if self.defect == "dropout" else x)


class AnotherTail(SyntheticImages):
    """Several processes have a step more in an epoch than one, as with a sampler that fills up."""

    def train_dataloader(self) -> Any:
        self.drop_last = world()[1] == 1
        return super().train_dataloader()
