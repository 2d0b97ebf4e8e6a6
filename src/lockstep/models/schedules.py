"""Learning rate schedules that know how long training lasts.

Each returns Lightning's scheduler dictionary. Lengths are in the schedule's own interval, steps or epochs.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from lockstep.errors import config_error

Interval = Literal["step", "epoch"]


class TrainingLength(NamedTuple):
    """Length of training: optimizer steps, epochs (both may be infinite), and optimizer steps in one epoch."""

    steps: float
    epochs: float
    steps_per_epoch: int

    def length(self, interval: Interval) -> int:
        total = self.steps if interval == "step" else self.epochs
        if math.isinf(total):
            accepted = "this schedule needs an end: set trainer.max_epochs or trainer.max_steps"
            raise config_error("model.lr_scheduler", "...", accepted)
        return math.ceil(total)


def entry(scheduler: LRScheduler, interval: Interval) -> dict[str, Any]:
    # no plain dict: Hydra would go through all of sys.modules to see whether it is the namespace of a module
    return OrderedDict(scheduler=scheduler, interval=interval)


def _factors(
    optimizer: Optimizer,
    training: TrainingLength,
    factor: Callable[[float], float],
    *,
    interval: Interval,
    warmup_steps: int,
    warmup_epochs: int,
) -> dict[str, Any]:
    """The base rate times factor(t), t counted in intervals after a linear warm-up from near zero."""
    warmup = _warmup_length(training, interval, warmup_steps, warmup_epochs)

    def at(t: int) -> float:
        return (t + 1) / (warmup + 1) if t < warmup else factor(t - warmup)

    return entry(LambdaLR(optimizer, at), interval)


def _warmup_length(training: TrainingLength, interval: Interval, warmup_steps: int, warmup_epochs: int) -> float:
    steps = warmup_steps + warmup_epochs * training.steps_per_epoch
    return steps if interval == "step" else steps / training.steps_per_epoch


def constant(optimizer: Optimizer, training: TrainingLength, **when: Any) -> dict[str, Any]:
    if not when["warmup_steps"] and not when["warmup_epochs"]:
        when["interval"] = "epoch"  # nothing changes from step to step
    return _factors(optimizer, training, lambda _: 1.0, **when)


def _until_the_end(
    optimizer: Optimizer, training: TrainingLength, factor: Callable[[float], float], **when: Any
) -> dict[str, Any]:
    """The base rate times factor(part), where part, from 0 to 1, is the part that is over of the time after the warm-up."""
    warmup = _warmup_length(training, when["interval"], when["warmup_steps"], when["warmup_epochs"])
    length = max(1.0, training.length(when["interval"]) - warmup)
    return _factors(optimizer, training, lambda t: factor(min(1.0, t / length)), **when)


def cosine(optimizer: Optimizer, training: TrainingLength, min_factor: float, **when: Any) -> dict[str, Any]:
    """Loshchilov & Hutter 2017, arXiv:1608.03983, without restarts: 1 after the warm-up, min_factor at the end."""

    def factor(part: float) -> float:
        return min_factor + (1 - min_factor) * (1 + math.cos(math.pi * part)) / 2

    return _until_the_end(optimizer, training, factor, **when)


def linear(optimizer: Optimizer, training: TrainingLength, min_factor: float, **when: Any) -> dict[str, Any]:
    """A straight line from 1 after the warm-up to min_factor at the end; with a warm-up, a triangle."""
    return _until_the_end(optimizer, training, lambda part: 1 - (1 - min_factor) * part, **when)


def wsd(optimizer: Optimizer, training: TrainingLength, min_factor: float, decay: float, **when: Any) -> dict[str, Any]:
    """Warm-up, stable, decay (Hu et al. 2024, arXiv:2404.06395): 1 after the warm-up, then a straight line to min_factor over
    the last part, `decay`, of what follows the warm-up."""
    if not 0 < decay <= 1:
        raise ValueError(f"decay={decay}: is not a fraction of training; use above 0 to 1")
    return _until_the_end(optimizer, training, lambda part: 1 - (1 - min_factor) * max(0.0, 1 - (1 - part) / decay), **when)


def step(optimizer: Optimizer, training: TrainingLength, step_size: int, gamma: float, **when: Any) -> dict[str, Any]:
    return _factors(optimizer, training, lambda t: gamma ** (t // step_size), **when)


def one_cycle(optimizer: Optimizer, training: TrainingLength, interval: Interval, **cycle: Any) -> dict[str, Any]:
    """Smith & Topin 2018, arXiv:1708.07120; the optimizer's learning rate is the highest one.

    The momentum, or an Adam's beta1, goes the other way, from torch's 0.95 to 0.85 and back, where the optimizer has one.
    """
    total = training.length(interval)
    highest = [group["lr"] for group in optimizer.param_groups]
    has_momentum = "momentum" in optimizer.defaults or "betas" in optimizer.defaults
    scheduler = OneCycleLR(optimizer, max_lr=highest, total_steps=total, cycle_momentum=has_momentum, **cycle)
    return entry(scheduler, interval)
