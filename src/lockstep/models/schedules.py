"""Learning rate schedules that know how long training lasts.

Each returns Lightning's scheduler dictionary. All but `one_cycle` are a LambdaLR that advances with every optimizer step, with a
linear warm-up from near zero of `warmup_steps` optimizer steps and `warmup_epochs` epochs.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from lockstep.errors import config_error


class TrainingLength(NamedTuple):
    """Length of training: optimizer steps, epochs (both may be infinite), and optimizer steps in one epoch."""

    steps: float
    epochs: float
    steps_per_epoch: int

    def end(self) -> int:
        """Return the number of optimizer steps. Raise ConfigError if it is infinite."""
        if math.isinf(self.steps):
            raise config_error("model.lr_scheduler", "...", "needs an end; set trainer.max_epochs or trainer.max_steps")
        return math.ceil(self.steps)


def _after_warmup(
    optimizer: Optimizer,
    training: TrainingLength,
    end: float,
    factor: Callable[[float], float],
    warmup_steps: int = 0,
    warmup_epochs: int = 0,
) -> dict[str, Any]:
    """Multiply the base rate by factor(part), where part grows from 0 at the end of the warm-up to 1 at the step `end`."""
    warmup = warmup_steps + warmup_epochs * training.steps_per_epoch
    length = max(1, end - warmup)

    def at(step: int) -> float:
        return (step + 1) / (warmup + 1) if step < warmup else factor(min(1.0, (step - warmup) / length))

    return {"scheduler": LambdaLR(optimizer, at), "interval": "step"}


def constant(optimizer: Optimizer, training: TrainingLength, **lengths: int) -> dict[str, Any]:
    """Keep the base rate after the warm-up."""
    interval = "step" if any(lengths.values()) else "epoch"
    return _after_warmup(optimizer, training, math.inf, lambda _: 1.0, **lengths) | {"interval": interval}


def cosine(optimizer: Optimizer, training: TrainingLength, min_factor: float, **lengths: int) -> dict[str, Any]:
    """Fall in half a cosine to min_factor times the base rate (Loshchilov & Hutter 2017, arXiv:1608.03983)."""

    def factor(part: float) -> float:
        return min_factor + (1 - min_factor) * (1 + math.cos(math.pi * part)) / 2

    return _after_warmup(optimizer, training, training.end(), factor, **lengths)


def linear(optimizer: Optimizer, training: TrainingLength, min_factor: float, **lengths: int) -> dict[str, Any]:
    """Fall in a straight line to min_factor times the base rate."""
    return _after_warmup(optimizer, training, training.end(), lambda part: 1 - (1 - min_factor) * part, **lengths)


def wsd(optimizer: Optimizer, training: TrainingLength, min_factor: float, decay: float, **lengths: int) -> dict[str, Any]:
    """Warm-up, stable, decay (Hu et al. 2024, arXiv:2404.06395): fall in a straight line in the last part, `decay`."""
    if not 0 < decay <= 1:
        raise ValueError(f"decay={decay}: is not a fraction of training; use above 0 to 1")

    def factor(part: float) -> float:
        return 1 - (1 - min_factor) * max(0.0, 1 - (1 - part) / decay)

    return _after_warmup(optimizer, training, training.end(), factor, **lengths)


def one_cycle(optimizer: Optimizer, training: TrainingLength, **cycle: Any) -> dict[str, Any]:
    """Rise to the optimizer's rate and fall again (Smith & Topin 2018, arXiv:1708.07120).

    The momentum, or an Adam's beta1, goes the other way, from torch's 0.95 to 0.85 and back, if the optimizer has one.
    """
    highest = [group["lr"] for group in optimizer.param_groups]
    has_momentum = "momentum" in optimizer.defaults or "betas" in optimizer.defaults
    scheduler = OneCycleLR(optimizer, max_lr=highest, total_steps=training.end(), cycle_momentum=has_momentum, **cycle)
    return {"scheduler": scheduler, "interval": "step"}
