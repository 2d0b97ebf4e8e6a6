"""Modules that know nothing of Lockstep in which each process draws noise of its own."""

import random
from typing import Any

import numpy
import torch
from planted_equal import Plain
from torch import Tensor


class Noisy(Plain):
    """Noise in the inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.noise(x).to(x) if self.training else x)

    def noise(self, x: Tensor) -> Tensor:
        return torch.randn(len(x), 1)


class NoiseInGradients(Plain):
    """Noise that each process adds to the gradients after they have been averaged."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad += 0.01 * torch.randn_like(parameter)


class Langevin(torch.optim.SGD):
    """Noise in the weights."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            parameter += 0.01 * torch.randn_like(parameter)
        return loss


class NoiseInOptimizer(Plain):
    def configure_optimizers(self) -> Any:
        return Langevin(self.parameters(), lr=0.1)


class NoiseOfNumpy(Noisy):
    def noise(self, x: Tensor) -> Tensor:
        return torch.from_numpy(numpy.random.standard_normal((len(x), 1)))


class NoiseOfPython(Noisy):
    def noise(self, x: Tensor) -> Tensor:
        return torch.tensor([[random.gauss(0, 1)] for _ in x])
