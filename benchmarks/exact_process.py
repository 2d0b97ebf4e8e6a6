"""Models of users that do not keep the bits of trainer.exact, since each reads something of the process: its rank, how many there
are, random numbers of its own, the time.

`place` is what the parity check is to name: the module, "" for the model's own training_step, or one of the words for what is
done once a step; `reads` is part of why.
"""

import os
import random
import time
from typing import Any

import torch
import torch.distributed as dist
from exact_same import Layer, Model
from torch import Tensor, nn
from torch.nn import functional

ONCE_MORE = "one process that trains twice does not repeat it"
PROCESS = "it depends on the process"


class RankGenerator(Model):
    refused = "draws from noise, which is not counted"

    def setup(self, stage: str) -> None:
        self.noise = torch.Generator().manual_seed(self.global_rank)

    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * torch.rand((), generator=self.noise)


class RankInLoss(Model):
    place, reads = "", PROCESS

    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * (1 + self.global_rank * 1e-6)


class RankInLayer(Model):
    place, reads = "net.1", PROCESS

    class Shift(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return x + int(os.environ.get("RANK", "0"))

    def middle(self) -> nn.Module:
        return self.Shift()


class RankInBackward(Model):
    place, reads = "net.1", PROCESS

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return gradient * (1 + (dist.get_rank() if dist.is_initialized() else 0))

    class Scale(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return RankInBackward.Function.apply(x)

    def middle(self) -> nn.Module:
        return self.Scale()


class WorldSizeInRate(Model):
    place, reads = "the learning rate", PROCESS

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1 * self.trainer.world_size)


class WorldSizeInLoss(Model):
    place, reads = "", PROCESS

    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * self.trainer.world_size


class Clock(Model):
    place, reads = "net.1", ONCE_MORE

    class Ticks(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return x + (time.time_ns() % 1000) / 1000

    def middle(self) -> nn.Module:
        return self.Ticks()


class OrderOfSet(Model):
    place, reads = "net.1", ONCE_MORE

    class Scales(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor([float(len(name)) for name in {"one", "four", "seven", "eleven", "fourteen", "thousand"}])

    def middle(self) -> nn.Module:
        return self.Scales()


class NoSeed(Model):
    place, reads = "", ONCE_MORE

    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * random.SystemRandom().uniform(0.5, 1.5)


class GatheredLoss(Model):
    refused = "calls self.all_gather within a step"

    def loss(self, batch: Any) -> Any:
        features = functional.normalize(self.net(self.numbers(batch)))
        everyone: Any = self.all_gather(features.detach())
        return functional.cross_entropy(features, batch.targets) + (features @ everyone.reshape(-1, 3).T).exp().mean()


class ReducedByHand(Model):
    place, reads = "net.1", PROCESS

    class Centre(Layer):
        def forward(self, x: Tensor) -> Tensor:
            mean = x.detach().mean(dim=0)
            if dist.is_initialized() and dist.get_world_size() > 1:
                dist.all_reduce(mean)
            return x - mean

    def middle(self) -> nn.Module:
        return self.Centre()


class BatchInHook(Model):
    """Noise is added to a process's whole batch."""

    place, reads = "the batch that it gets", PROCESS

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch._replace(inputs=batch.inputs + torch.rand(batch.inputs.shape))
