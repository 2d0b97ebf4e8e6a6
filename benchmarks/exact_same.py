"""Models of users that keep the bits of trainer.exact on any number of processes; exact_models.py trains them.

What depends on who computes it is all there, but in what the virtual workers count, restore or average: random numbers of torch,
numpy and Python, and buffers.
"""

import random
from typing import Any, cast

import numpy
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Model(LightningModule):
    wide = 6  # 16 numbers a sample, three classes

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, self.wide), self.middle(), nn.Linear(self.wide, 3))

    def middle(self) -> nn.Module:
        return nn.Tanh()

    def numbers(self, batch: Any) -> Tensor:
        return batch.inputs.flatten(1).float() / 255

    def loss(self, batch: Any) -> Any:
        return functional.cross_entropy(self.net(self.numbers(batch)), batch.targets)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("train/loss", loss := self.loss(batch), on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Layer(nn.Module):
    def __init__(self, width: int = Model.wide) -> None:
        super().__init__()
        self.width = width


class Dropout(Model):
    def middle(self) -> nn.Module:
        return nn.Dropout(0.3)


class BatchNorm(Model):
    def middle(self) -> nn.Module:
        return nn.BatchNorm1d(self.wide)


class RReLU(Model):
    def middle(self) -> nn.Module:
        return nn.RReLU(inplace=True)


class FunctionalDropout(Model):
    def loss(self, batch: Any) -> Any:
        hidden = functional.dropout(self.net[:2](self.numbers(batch)), 0.4)
        return functional.cross_entropy(self.net[2](hidden), batch.targets)


class NoiseInStep(Model):
    def numbers(self, batch: Any) -> Tensor:
        inputs = super().numbers(batch)
        return inputs + 0.1 * torch.randn(inputs.shape)


class Gumbel(Model):
    class Choice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.gumbel_softmax(x, hard=True)

    def middle(self) -> nn.Module:
        return self.Choice()


class NumpyNoise(Model):
    def numbers(self, batch: Any) -> Tensor:
        return super().numbers(batch) * float(numpy.random.uniform(0.5, 1.5))


class PythonChoice(Model):
    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * random.choice((0.5, 1.0, 2.0))


class SpectralNorm(Model):
    def middle(self) -> nn.Module:
        return nn.utils.parametrizations.spectral_norm(nn.Linear(self.wide, self.wide))


class WeightNorm(Model):
    def middle(self) -> nn.Module:
        return nn.utils.parametrizations.weight_norm(nn.Linear(self.wide, self.wide))


class TiedWeights(Model):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(16, self.wide)
        self.encoder.weight = cast(nn.Linear, self.net[0]).weight

    def loss(self, batch: Any) -> Any:
        inputs = self.numbers(batch)
        return super().loss(batch) + functional.mse_loss(self.encoder(inputs) @ self.net[0].weight, inputs)


class EmbeddingBag(Model):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(256, 16)

    def numbers(self, batch: Any) -> Tensor:
        return self.bag(batch.inputs.flatten(1).long())


class StraightThrough(Model):
    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.sign()

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return gradient

    def loss(self, batch: Any) -> Any:
        return functional.cross_entropy(self.net[2](self.Sign.apply(self.net[0](self.numbers(batch)))), batch.targets)


class Checkpointed(Model):
    def middle(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.wide, self.wide), nn.Dropout(0.2), nn.ReLU())

    def loss(self, batch: Any) -> Any:
        hidden = checkpoint(self.net[1], self.net[0](self.numbers(batch)), use_reentrant=False)
        return functional.cross_entropy(self.net[2](hidden), batch.targets)


class Branches(Model):
    def loss(self, batch: Any) -> Any:
        hidden = self.net[0](self.numbers(batch))
        hidden = self.net[1](hidden) if hidden.mean() > 0 else hidden.relu()
        return functional.cross_entropy(self.net[2](hidden), batch.targets)


class LSTM(Model):
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(1, Model.wide, num_layers=2, dropout=0.2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x[..., None])[0][:, -1]

    def middle(self) -> nn.Module:
        return self.Last()


class Convolutions(Model):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(16, 3))

    def numbers(self, batch: Any) -> Tensor:
        return batch.inputs.float() / 255


class Attention(Model):
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(2, 2, dropout=0.1, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            tokens = x.unflatten(1, (-1, 2))
            return self.attention(tokens, tokens, tokens)[0].flatten(1)

    def middle(self) -> nn.Module:
        return self.Heads()


class EMATeacher(Model):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(16, 3).requires_grad_(False)
        self.student = nn.Linear(16, 3)

    def loss(self, batch: Any) -> Any:
        inputs = self.numbers(batch)
        return super().loss(batch) + functional.mse_loss(self.student(inputs), self.teacher(inputs))

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            old.lerp_(new, 0.1)


class QueueInBuffer(Model):
    queue: Tensor
    pointer: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.randn(12, 3))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    def loss(self, batch: Any) -> Any:
        keys = functional.normalize(self.net(self.numbers(batch)))
        loss = functional.cross_entropy(keys, batch.targets) + (keys @ self.queue.clone().T).exp().mean()
        places = (self.pointer + torch.arange(len(keys))) % 12
        self.queue[places] = keys.detach()
        self.pointer.copy_((self.pointer + len(keys)) % 12)
        return loss


class Mixup(Model):
    def loss(self, batch: Any) -> Any:
        inputs, share, order = self.numbers(batch), numpy.random.beta(0.4, 0.4), torch.randperm(len(batch.inputs))
        outputs = self.net(share * inputs + (1 - share) * inputs[order])
        losses = [functional.cross_entropy(outputs, targets) for targets in (batch.targets, batch.targets[order])]
        return share * losses[0] + (1 - share) * losses[1]


class GradientPenalty(Model):
    def loss(self, batch: Any) -> Any:
        inputs = self.numbers(batch).requires_grad_()
        loss = functional.cross_entropy(self.net(inputs), batch.targets)
        (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
        return loss + slope.square().sum()


class RunningMeanInBuffer(Model):
    class Centre(Layer):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(self.width))

        def forward(self, x: Tensor) -> Tensor:
            self.mean.lerp_(x.detach().mean(dim=0), 0.1)
            return x - self.mean

    def middle(self) -> nn.Module:
        return self.Centre()


class ReplacedBuffer(Model):
    """Another tensor is assigned to the buffer in each step."""

    class Centre(RunningMeanInBuffer.Centre):
        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
            return x - self.mean

    def middle(self) -> nn.Module:
        return self.Centre()


class InBatchNegatives(Model):
    def loss(self, batch: Any) -> Any:
        features = functional.normalize(self.net(self.numbers(batch)))
        return functional.cross_entropy(features @ features.T * 5, torch.arange(len(features)))


class Prototypes(Model):
    centres: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centres", torch.zeros(3, 3))

    def loss(self, batch: Any) -> Any:
        features = self.net(self.numbers(batch))
        self.centres.index_add_(0, batch.targets, 0.1 * features.detach())
        return functional.cross_entropy(-torch.cdist(features, self.centres.clone()), batch.targets)


class HookOnModule(Model):
    def __init__(self) -> None:
        super().__init__()
        self.net[0].register_forward_hook(lambda *given: given[-1] * 0.5)
        cast(nn.Linear, self.net[0]).weight.register_hook(lambda gradient: gradient * 2)


class WeightedValidation(Model):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        losses = functional.cross_entropy(self.net(self.numbers(batch)), batch.targets, reduction="none")
        self.log("val/loss", (losses * batch.loss_weight).mean(), sync_dist=True)


class NoiseInOptimizer(Model):
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
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad = parameter.grad + 1e-3 * torch.randn_like(parameter)  # pyright: ignore[reportOptionalOperand]


class AveragesAfterBatch(Model):
    """An average of the weights that is kept in a hook, and pulls them."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        weights = {name: parameter.detach().clone() for name, parameter in self.named_parameters()}
        self.average = {name: torch.lerp(getattr(self, "average", weights)[name], weights[name], 0.1) for name in weights}
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.lerp_(self.average[name], 0.01)


class ScaledByGradients(Model):
    """The loss of a step depends on the gradients of the one before."""

    scale = 1.0

    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * self.scale

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [parameter.grad.norm() for parameter in self.parameters() if parameter.grad is not None]
        self.scale = 1 / (0.5 + float(torch.stack(norms).norm()))
        self.log("train/scale", self.scale, on_epoch=True)


class LeavesBatchesOut(Model):
    """A step that returns None for some batches, and for all of one."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx == 1 or batch.targets[0] == 0 else loss


class Closure(Model):
    """An optimizer that computes the step several times."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class Compiled(Model):
    def __init__(self) -> None:
        super().__init__()
        self.net.compile(backend="aot_eager")


class ClippedByHook(Model):
    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.01 * (1 + self.current_epoch), gradient_clip_algorithm="norm")
