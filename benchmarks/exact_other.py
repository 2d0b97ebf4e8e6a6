"""Models of users that do not keep the bits of trainer.exact: each reads something that another number of processes changes.

`place` is what the parity check is to name: the module, "" for the model's own training_step, or one of the words for what is
done once a step; `reads` is part of why.
"""

import os
import random
import time
from collections import deque
from typing import Any

import numpy
import torch
import torch.distributed as dist
from exact_same import Layer, Model
from torch import Tensor, nn
from torch.nn import functional

ALL_WORDS = "one process that trains twice does not repeat it"
PROCESS = "it depends on the process"
DRAWN = random.Random(0)  # not that of the process


class CarriedHidden(Model):
    place, reads = "net.1", "hidden"

    class Recurrent(Layer):
        hidden: Any = None

        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRUCell(self.width, self.width)

        def forward(self, x: Tensor) -> Tensor:
            if self.hidden is not None and len(self.hidden) != len(x):
                self.hidden = None
            hidden = self.rnn(x, self.hidden)
            self.hidden = hidden.detach()
            return hidden

    def middle(self) -> nn.Module:
        return self.Recurrent()


class OwnGenerator(Model):
    place, reads = "net.1", "generator"

    class Noise(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.1 * torch.randn(x.shape, generator=self.generator)

    def middle(self) -> nn.Module:
        return self.Noise()


class OwnNumpyGenerator(Model):
    place, reads = "", "draws"

    def __init__(self) -> None:
        super().__init__()
        self.draws = numpy.random.default_rng(0)

    def numbers(self, batch: Any) -> Tensor:
        return super().numbers(batch) * float(self.draws.uniform(0.5, 1.5))


class GlobalGenerator(Model):
    place, reads = "", "exact_other.DRAWN"

    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * DRAWN.choice((0.5, 1.0, 2.0, 4.0))


class RankGenerator(Model):
    place, reads = "", "noise, which is not the same"

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
    place, reads = "net.1", ALL_WORDS

    class Ticks(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return x + (time.time_ns() % 1000) / 1000

    def middle(self) -> nn.Module:
        return self.Ticks()


class OrderOfSet(Model):
    place, reads = "net.1", ALL_WORDS

    class Scales(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor([float(len(name)) for name in {"one", "four", "seven", "eleven", "fourteen", "thousand"}])

    def middle(self) -> nn.Module:
        return self.Scales()


class NoSeed(Model):
    place, reads = "", ALL_WORDS

    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * random.SystemRandom().uniform(0.5, 1.5)


class FirstBatchCache(Model):
    place, reads = "net.1", "scale"

    class ActNorm(Layer):
        scale: Any = None

        def forward(self, x: Tensor) -> Tensor:
            if self.scale is None:
                self.scale = x.detach().std(dim=0) + 1
            return x / self.scale

    def middle(self) -> nn.Module:
        return self.ActNorm()


class RunningMean(Model):
    place, reads = "net.1", "mean"

    class Centre(Layer):
        mean: Any = 0.0

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
            return x - self.mean

    def middle(self) -> nn.Module:
        return self.Centre()


class GatheredLoss(Model):
    place, reads = "", PROCESS

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


class NoiseInOptimizer(Model):
    place, reads = "the optimizer", PROCESS

    class Langevin(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            loss = super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
            return loss

    def configure_optimizers(self) -> Any:
        return self.Langevin(self.parameters(), lr=0.1)


class NoiseInGradients(Model):
    place, reads = "what changes gradients before", PROCESS

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad = parameter.grad + 1e-3 * torch.randn_like(parameter)  # pyright: ignore[reportOptionalOperand]


class CentreAfterBatch(Model):
    """As a collapse guard has it: the mean of what this process has seen last."""

    place, reads = "what happens between two steps", "last"
    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.last = torch.zeros(3)

    def loss(self, batch: Any) -> Any:
        outputs = self.net(self.numbers(batch))
        self.last = outputs.detach().mean(dim=0)
        return functional.cross_entropy(outputs - self.centre, batch.targets)

    def on_train_batch_end(self, *_: Any) -> None:
        self.centre.lerp_(self.last, 0.1)


class CountedCalls(Model):
    place, reads = "net.1", "calls"

    class Warmup(Layer):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * min(1.0, self.calls / 10)

    def middle(self) -> nn.Module:
        return self.Warmup()


class QueueInAttribute(Model):
    place, reads = "", "queue"

    def __init__(self) -> None:
        super().__init__()
        self.queue: deque[Tensor] = deque(maxlen=12)

    def loss(self, batch: Any) -> Any:
        keys = functional.normalize(self.net(self.numbers(batch)))
        loss = functional.cross_entropy(keys, batch.targets)
        if self.queue:
            loss = loss + (keys @ torch.stack([*self.queue]).T).exp().mean()
        self.queue.extend(keys.detach())
        return loss


class LossScale(Model):
    """Divides by the running mean of the loss, a number."""

    place, reads = "", "average"
    average = 1.0

    def loss(self, batch: Any) -> Any:
        loss = super().loss(batch)
        self.average = 0.9 * self.average + 0.1 * loss.item()
        return loss / self.average


class Alternates(Model):
    """Another layer at every second call."""

    place, reads = "", "turn"
    turn = 0

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def loss(self, batch: Any) -> Any:
        self.turn += 1
        head = self.heads[self.turn // 2 % 2]
        return functional.cross_entropy(head(self.net(self.numbers(batch))), batch.targets)


class BatchInHook(Model):
    """Noise is added to a process's whole batch."""

    place, reads = "the batch that it gets", PROCESS

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch._replace(inputs=batch.inputs + torch.rand(batch.inputs.shape))


class Codebook(Model):
    place, reads = "net.1", "codes"

    class Nearest(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.codes = torch.linspace(-1, 1, 4 * self.width).view(4, self.width)

        def forward(self, x: Tensor) -> Tensor:
            nearest = torch.cdist(x.detach(), self.codes).argmin(dim=1)
            quantized = self.codes[nearest]
            self.codes = self.codes.index_add(0, nearest, 0.1 * (x.detach() - quantized))
            return x + (quantized - x).detach() * 0.5

    def middle(self) -> nn.Module:
        return self.Nearest()


class CountedByClass(Model):
    place, reads = "net.1", "calls"

    class Decay(Layer):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return x * 0.99**self.calls

    def middle(self) -> nn.Module:
        return self.Decay()


class MeanOfProcess(Model):
    """What a hook takes from the batch of the process."""

    place, reads = "", "mean"
    mean: Any = 0.0

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.mean = super().numbers(batch).mean(dim=0)

    def numbers(self, batch: Any) -> Tensor:
        return super().numbers(batch) - self.mean
