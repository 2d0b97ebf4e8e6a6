"""Models of users that do not keep the bits of trainer.exact, since each keeps state from batch to batch that is no buffer.

`place` is what the parity check is to name: the module, "" for the model's own training_step, or one of the words for what is
done once a step; `reads` is part of why.
"""

import random
from collections import deque
from typing import Any

import numpy
import torch
from exact_same import Layer, Model
from torch import Tensor, nn
from torch.nn import functional

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
    refused = "draws from net.1.generator, which is not counted"

    class Noise(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.1 * torch.randn(x.shape, generator=self.generator)

    def middle(self) -> nn.Module:
        return self.Noise()


class OwnNumpyGenerator(Model):
    refused = "draws from draws, which is not counted"

    def __init__(self) -> None:
        super().__init__()
        self.draws = numpy.random.default_rng(0)

    def numbers(self, batch: Any) -> Tensor:
        return super().numbers(batch) * float(self.draws.uniform(0.5, 1.5))


class GlobalGenerator(Model):
    place, reads = "", "exact_state.DRAWN"

    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * DRAWN.choice((0.5, 1.0, 2.0, 4.0))


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


class CountedCalls(Model):
    place, reads = "net.1", "calls"

    class Warmup(Layer):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * min(1.0, self.calls / 10)

    def middle(self) -> nn.Module:
        return self.Warmup()


class CountedByClass(Model):
    place, reads = "net.1", "calls"

    class Decay(Layer):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return x * 0.99**self.calls

    def middle(self) -> nn.Module:
        return self.Decay()


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


class MeanOfProcess(Model):
    """What a hook takes from the batch of the process."""

    place, reads = "", "mean"
    mean: Any = 0.0

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.mean = super().numbers(batch).mean(dim=0)

    def numbers(self, batch: Any) -> Tensor:
        return super().numbers(batch) - self.mean


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

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.centre.lerp_(self.last, 0.1)


class HelperObject(Model):
    """Its state is in an object that is no module."""

    place, reads = "", "memory"

    class Memory:
        def __init__(self) -> None:
            self.mean = torch.zeros(16)

    def __init__(self) -> None:
        super().__init__()
        self.memory = self.Memory()

    def numbers(self, batch: Any) -> Tensor:
        inputs = super().numbers(batch)
        self.memory.mean = 0.9 * self.memory.mean + 0.1 * inputs.mean(dim=0)
        return inputs - self.memory.mean


class ByHand(Model):
    """Two optimizers in turn, as a GAN has them."""

    refused = "has automatic_optimization=False"

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        for optimizer in optimizers:
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[layer].parameters(), lr=0.1) for layer in (0, 2)], []
