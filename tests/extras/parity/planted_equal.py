"""Modules in which N processes are one, and that know nothing of Lockstep: small enough to be compared in a second, each with
something of its own.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from planted_data import world
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanMetric


class Plain(LightningModule):
    """A linear model and a mean squared error."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        return functional.mse_loss(self(inputs), targets)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch), sync_dist=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Leaves(Plain):
    """It brings a callback that saves, and makes a folder of its own in the run's directory."""

    def on_fit_start(self) -> None:
        Path(self.trainer.default_root_dir, "plots").mkdir(exist_ok=True)

    def configure_callbacks(self) -> Any:
        return ModelCheckpoint(every_n_train_steps=1)


class UnfreezesLater(Plain):
    """A layer that is trained from the tenth epoch on, by then wrongly."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.backbone = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.backbone(x))


class TimeMajor(Plain):
    """A recurrence over the first axis; a permutation of what looks like the batch is another training."""

    decay = 0.0

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.recurrence = nn.LSTM(4, 4)

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        return functional.mse_loss(self.layer(self.recurrence(inputs)[0][-1]), targets)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch), sync_dist=True, batch_size=len(batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=self.decay * world()[1])


class Converges(Plain):
    """Ten times nearer to its target at every step, until rounding is all that is left of its gradient."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        weights = torch.cat([self.layer.weight.flatten(), self.layer.bias])
        return 4.5 * (weights[None] * (1 + 1e-9 * batch[0][:, :1]) - 1 / 3).square().sum(dim=1).mean()


class Float32Mean(Plain):
    """A torchmetrics mean, which adds in float32."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.mean = MeanMetric()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.mean.update((self(batch[0]) - batch[1]).square().sum(dim=1))
        self.log("val/loss", self.mean)


class Tokens(Plain):
    """A sum over tokens, over a constant; or their mean."""

    is_mean = False

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.layer = nn.Embedding(32, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs, targets = self.layer(batch["ids"]).flatten(0, 1), batch["labels"].flatten()
        if self.is_mean:
            return functional.cross_entropy(outputs, targets)
        return functional.cross_entropy(outputs, targets, reduction="sum") / len(batch["ids"])

    def validation_step(self, batch: Any, batch_idx: int) -> None: ...


class EverythingOdd(LightningModule):
    """Sparse gradients, state that is no tensor, its own logger's methods, and batches that are dictionaries."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.layer = nn.Embedding(16, 3, sparse=True)

    def get_extra_state(self) -> Any:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        assert state == {"version": 1}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(batch["ids"]).square().mean()
        self.logger.experiment.add_scalar("loss", loss, self.global_step)  # pyright: ignore
        return {"loss": loss}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Float32Only(Plain):
    """Makes a tensor of its own in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x @ torch.eye(4, dtype=torch.float32))


class OneCycle(Plain):
    """A schedule over all epochs, as many programs compute it."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        steps = (self.trainer.max_epochs or 0) * 2
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class SpectralNorm(Plain):
    """A step of its power iteration in each forward."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2))


class SharedMean(Plain):
    """A running mean of all processes' inputs, in each forward."""

    mean: Tensor

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean = x.detach().mean(dim=0)
            if dist.is_initialized():
                dist.all_reduce(mean)
            self.mean.lerp_(mean / world()[1], 0.1)
        return super().forward(x - self.mean)


class BiasBeforeNorm(Plain):
    """torch's default: a bias that the mean of the normalisation takes away again. Its gradients sum up to nearly zero."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Stops(Plain):
    """Ends training in its first step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trainer.should_stop = True
        return super().training_step(batch, batch_idx)


class NeverBegins(Plain):
    """Ends every epoch before its first batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1


class TrainMetric(Plain):
    """Logs its own process's mean of training."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss


class TestMetric(Plain):
    """Tests, and logs its own process's mean."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test/loss", self.loss(batch))
