"""A noisy quadratic whose critical batch is known in closed form.

The loss is |w|^2 / 2, a sample's gradient is w + |w| z with E|z|^2 = `noise`, which is the noise scale, tr(Sigma) / |G|^2, at
any w. A step of rate r with batch B multiplies the expected loss by (1 - r)^2 + r^2 noise / B. The best rate is
1 / (1 + noise / B), the factor then 1 / (1 + B / noise), and the logarithm of the loss falls by log(1 + B / noise) / B with each
sample. A batch needs twice the samples of the smallest ones where that is half of 1 / noise: at log(1 + x) = x / 2 with
x = B / noise, x = 2.5129.
"""

import math
from collections.abc import Sequence

import numpy

from lockstep.extras.plan.branches import Branch

DOUBLE = 2.5129  # times the noise scale


class Quadratic:
    def __init__(
        self,
        noise: float,
        smallest: int,
        every: int,
        seed: int,
        size: int = 400,
        floor: float = 0.0,
        trained: float | None = None,
    ) -> None:
        """smallest: the batch whose multiples are tried; every: samples between points; floor: the part of E|z|^2 that stays when
        |w| falls; trained: the rate of a long training by which the branches' weights were made, or none."""
        self.noise, self.smallest, self.every, self.size, self.floor, self.trained = noise, smallest, every, size, floor, trained
        self.generator = numpy.random.default_rng(seed)
        self.spent = 0.0  # samples

    @property
    def best_rate(self) -> float:
        return 1 / (1 + self.noise / self.smallest)

    def measure(self, branches: Sequence[Branch], points: int) -> list[list[float]]:
        self.spent += self.every * points * len(branches)
        return [self._curve(branch, points) for branch in branches]

    def _curve(self, branch: Branch, points: int) -> list[float]:
        """All branches of a start and a repeat have the same samples in the same order."""
        draws = numpy.random.default_rng((self.generator.bit_generator.seed_seq.entropy, branch.start, branch.repeat))
        weights = draws.normal(size=self.size) / math.sqrt(self.size)
        if self.trained is not None:
            for _ in range(2000):
                weights = self._step(weights, self.trained, draws.normal(size=(1, self.size)))
        every = self.every // self.smallest  # steps of the smallest batch
        samples = draws.normal(size=(every * points, self.size))
        losses = [_loss(weights)]
        for first in range(0, len(samples), branch.multiple):
            weights = self._step(weights, branch.rate, samples[first : first + branch.multiple])
            seen = min(len(samples), first + branch.multiple)
            losses += [_loss(weights)] * (seen // every - (len(losses) - 1))
        return losses

    def _step(self, weights: numpy.ndarray, rate: float, samples: numpy.ndarray) -> numpy.ndarray:
        size = math.sqrt((self.noise * float(weights @ weights) + self.floor) / self.smallest / self.size)
        return weights - rate * (weights + size * samples.mean(axis=0))


def _loss(weights: numpy.ndarray) -> float:
    return float(weights @ weights) / 2
