"""Modules that know nothing of Lockstep in which N processes are not one, each for one reason."""

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from planted_data import world
from planted_equal import Plain, TimeMajor, Tokens
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional


class RunningMean(Plain):
    """Keeps a mean of its process's inputs, which it takes off in validation."""

    mean: Tensor

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(dim=0), 0.1)
        return super().forward(x if self.training else x - self.mean)


class Centre(Plain):
    """As DINO's: a mean of its process's outputs, in the module's own hook after the step, which Lightning calls last."""

    hook = "on_train_batch_end"
    centre: Tensor

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))
        setattr(self, self.hook, self.moves)

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        self.seen = outputs.detach()
        return outputs

    def moves(self, *_: Any) -> None:
        self.centre.lerp_(self.seen.mean(dim=0), 0.1)


class Prototypes(Centre):
    hook = "on_train_epoch_end"


class Threshold(Centre):
    """From the scores of its process's part of the validation."""

    hook = "on_validation_epoch_end"


class SmallBesideLarge(RunningMean):
    """A mean beside an entry of 1e12."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean[0] = 1e12
        return Plain.forward(self, x) if not self.training else super().forward(x)


class StatefulGRU(Plain):
    """Its state is a buffer, as long as the batch of its process."""

    hidden: Tensor

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.register_buffer("hidden", torch.zeros(1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        before = self.hidden if self.hidden.shape[1] == len(x) else self.hidden.new_zeros(1, len(x), 4)
        outputs, hidden = self.gru(x[:, None], before.to(x))
        if self.training:
            self.hidden = hidden.detach()
        return super().forward(outputs[:, 0])


class SumLoss(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return functional.mse_loss(self(batch[0]), batch[1], reduction="sum")


class TimeForSamples(Plain):
    """Attention between the samples of a batch, by torch's default of the axes."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.attention(x[:, None] * torch.arange(1, 4).to(x)[:, None]).mean(dim=1))


class Coupled(Plain):
    """Takes the mean of its batch off, in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(dim=0))


class FunctionalNorm(Plain):
    """torch's function with buffers of one's own."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = (torch.as_tensor(buffer) for buffer in (self.mean, self.variance))
        return super().forward(functional.batch_norm(x, mean, variance, training=self.training))


class CentredNorm(nn.BatchNorm1d):
    """A subclass that computes its statistics itself."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        mean, variance = input.mean(dim=0), input.var(dim=0)
        assert self.running_mean is not None
        self.running_mean.lerp_(mean.detach(), 0.1)
        return (input - mean) / (variance + self.eps).sqrt()


class OwnNorm(Plain):
    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.norm = CentredNorm(4, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class InstanceNorm(Plain):
    """Running statistics of each process's own samples."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(1, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x[:, None])[:, 0])


class Killed(Plain):
    """The last of several processes, as by the kernel that has no memory left."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        rank, size = world()
        if size > 1 and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


class LoggedAlone(Plain):
    """A metric that only the second process logs."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.global_rank == 1:
            self.log("val/alone", self.loss(batch), batch_size=1)


class Largest(Plain):
    """The largest error of a process's batch, whose mean is logged."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/largest", (self(batch[0]) - batch[1]).abs().max())


class Imaginary(Plain):
    """A complex weight, of whose gradient the imaginary part grows with the number of processes."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.phase.register_hook(lambda gradient: torch.complex(gradient.real, gradient.imag * world()[1]))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x * self.phase * (1 + 0.5j)).real)


class TimeMajorDecay(TimeMajor):
    """Its weight decay grows with the number of processes."""

    decay = 1e-4


class TokenMean(Tokens):
    is_mean = True


class Contrastive(Plain):
    """Every other sample of the batch is a negative one."""

    def loss(self, batch: Any) -> Tensor:
        similarity = self(batch[0]) @ batch[1].T
        return functional.cross_entropy(similarity, torch.arange(len(similarity)))

    def validation_step(self, batch: Any, batch_idx: int) -> None: ...


class Gathered(Contrastive):
    """Has the other processes' samples too, and so the gradient of the whole batch."""

    def loss(self, batch: Any) -> Tensor:
        outputs, targets = self(batch[0]), batch[1]
        if dist.is_initialized():
            everyone = [torch.zeros_like(targets) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, targets)
            targets, outputs = torch.cat(everyone), torch.cat(all_gather(outputs))
        return functional.cross_entropy(outputs @ targets.T, torch.arange(len(outputs)))


class PerProcessSchedule(Plain):
    """Ends its schedule after as many steps as a process would have batches if it had all the others' too."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        end = 8 // world()[1]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 2 else max(0.1, 1 - step / end))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class RunningMeanAndSchedule(RunningMean, PerProcessSchedule):
    """Two defects, one behind the other."""


class Branches(Plain):
    """The second process does something in its step for which the first one never comes."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_rank == 1 and batch_idx == 1:
            time.sleep(60)
        return super().training_step(batch, batch_idx)
