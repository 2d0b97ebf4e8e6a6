"""Models and data in which N processes are not one, each for one reason."""

import math
import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from synthetic import Images
from torch import Tensor, nn

from lockstep.datamodules.batches import Batch
from lockstep.models import Classifier
from lockstep.nets import MLP, Dropout


class MeanLoss(Classifier):
    """Averages over the samples of its own process, however many."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.measure(self(batch.inputs), batch.targets)["loss"].mean()

    def on_train_epoch_end(self) -> None: ...


class LogsEveryStep(Classifier):
    """Its own process's loss at every step, as many do, and batches of the validation beside its mean."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        outputs = super().validation_step(batch, batch_idx)
        self.log("val/output", outputs.sum(), on_step=True, on_epoch=True, reduce_fx="sum", sync_dist=True)
        return outputs


class MeanOfMeans(Classifier):
    """Its validation loss is the mean over batches and processes."""

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        outputs = self(batch.inputs)
        loss = nn.functional.cross_entropy(outputs, batch.targets)  # an accuracy of eleven samples may agree by chance
        self.log("val/loss", loss, on_epoch=True, sync_dist=True, batch_size=1)
        return outputs

    def on_validation_epoch_end(self) -> None: ...


class ScaledRate(Classifier):
    """The learning rate times the world size."""

    def configure_optimizers(self) -> Any:
        configured = super().configure_optimizers()
        schedule = configured["lr_scheduler"]["scheduler"]
        schedule.base_lrs = [rate * self.trainer.world_size for rate in schedule.base_lrs]
        for group, rate in zip(configured["optimizer"].param_groups, schedule.base_lrs, strict=True):
            group["lr"] = rate
        return configured


class PlainDropout(MLP):
    """torch's own dropout."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.3, self.training))


class Unused(MLP):
    """Two layers that the forward pass leaves out."""

    def __init__(self, **net: Any) -> None:
        super().__init__(**net)
        self.forgotten = nn.Linear(3, 3)


class Nondeterministic(MLP):
    """A last bit or so that changes from call to call, unless told not to."""

    def forward(self, x: Tensor) -> Tensor:
        noise = 0.0 if torch.are_deterministic_algorithms_enabled() else random.SystemRandom().uniform(0.0, 1e-6)
        return super().forward(x) * (1 + noise)


class AtBoundary(MLP):
    """A unit whose input lies within float32's rounding of zero, where that rounds to another side on several processes."""

    def __init__(self, **net: Any) -> None:
        super().__init__(**net)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        side = -1 if dist.is_initialized() else 1
        outputs = super().forward(x)
        unit = nn.functional.relu(self.bias[0] + side * torch.finfo(x.dtype).eps + 1e-9)
        return torch.cat([outputs[:, :1] + unit, outputs[:, 1:]], dim=1)


class FlipsPerRank(Images):
    """Mirrors images by the process's own generator."""

    def __init__(self, **loading: Any) -> None:
        super().__init__(**loading)
        if self.augment is not None:
            self.augment = flip


class AnotherTail(Images):
    """Several processes have a step more in an epoch than one, as with a sampler that fills up."""

    def train_dataloader(self) -> Any:
        self.drop_last = not dist.is_initialized()
        return super().train_dataloader()


def flip(images: Tensor, _ids: Tensor, _epoch: int) -> Tensor:
    return torch.where((torch.rand(len(images)) < 0.5)[:, None, None, None], images.flip(3), images)


class Fails(MLP):
    """Raises in training."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("planted")


class ActivatedNorm(nn.BatchNorm2d):
    """A norm with an activation in it, as timm's."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.relu(super().forward(input))


class Peculiar(nn.Module):
    """What a net may be: it can't be run on nothing, its norm is a subclass, in use at two places under two names."""

    def __init__(self, input_shape: Sequence[int], num_outputs: int, **_: Any) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(input_shape[0], 4, 3, padding=1, bias=False)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = self.norm_again = ActivatedNorm(4)
        self.dropout = Dropout(0.3)
        self.head = nn.Linear(4 * math.prod(input_shape[1:]), num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_again(self.second(self.norm(self.convolution(x))))
        return self.head(self.dropout(x.view(x.size(0), -1)))
