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

from lockstep.extras.plan.branches import WHOLE, Branch

DOUBLE = 2.5129  # times the noise scale


class Quadratic:
    def __init__(self, noise: float, smallest: int, samples: int, seed: int, size: int = 400, points: int = 4) -> None:
        """smallest: the batch whose multiples are tried; samples: of a branch."""
        self.noise, self.smallest, self.points, self.size = noise, smallest, points, size
        self.steps = samples // smallest
        self.generator = numpy.random.default_rng(seed)
        self.halves: dict[Branch, int] = {}
        self.spent = 0.0  # branches' lengths

    @property
    def best_rate(self) -> float:
        return 1 / (1 + self.noise / self.smallest)

    def measure(self, branches: Sequence[Branch], halves: int = WHOLE) -> list[list[float]]:
        self.spent += sum(halves - self.halves.get(one, 0) for one in branches) / 2
        self.halves |= dict.fromkeys(branches, halves)
        return [self._curve(branch, halves) for branch in branches]

    def _curve(self, branch: Branch, halves: int) -> list[float]:
        """All branches of a checkpoint have the same samples in the same order."""
        draws = numpy.random.default_rng((self.generator.bit_generator.seed_seq.entropy, branch.start))
        weights = draws.normal(size=self.size) / math.sqrt(self.size)
        points = self.points * halves // 2
        steps = self.steps // self.points * points
        of_smallest = draws.normal(size=(steps, self.size)) * math.sqrt(self.noise / self.smallest / self.size)
        losses, every = [_loss(weights)], self.steps // self.points
        for first in range(0, steps, branch.multiple):
            gradient = weights + numpy.linalg.norm(weights) * of_smallest[first : first + branch.multiple].mean(axis=0)
            weights = weights - branch.rate * gradient
            seen = min(steps, first + branch.multiple)
            losses += [_loss(weights)] * (seen // every - (len(losses) - 1))
        return losses


def _loss(weights: numpy.ndarray) -> float:
    return float(weights @ weights) / 2
