"""Running means of what a noise scale is the ratio of."""

from dataclasses import dataclass


@dataclass
class Smoothed:
    """Running means over estimates, as Adam has them: divided by `weight` they don't lean towards zero, where they begin.

    gradient, trace: of |G|^2 and tr(Sigma), times the weight.
    ratios, total: how many ratios there were, and their sum.
    """

    gradient: float = 0.0
    trace: float = 0.0
    weight: float = 0.0
    estimates: int = 0
    ratios: int = 0
    total: float = 0.0

    @property
    def ratio(self) -> float | None:
        """In samples; None while |G|^2 can't be told from zero."""
        return self.trace / self.gradient if self.gradient > 0 else None

    def mean(self, value: float) -> float | None:
        return value / self.weight if self.estimates else None

    def add(self, gradient: float, trace: float, decay: float) -> None:
        self.gradient = decay * self.gradient + (1 - decay) * gradient
        self.trace = decay * self.trace + (1 - decay) * trace
        self.weight = decay * self.weight + 1 - decay
        self.estimates += 1
        if (ratio := self.ratio) is not None:
            self.ratios, self.total = self.ratios + 1, self.total + ratio
