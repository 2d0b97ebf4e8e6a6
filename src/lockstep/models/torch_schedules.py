"""Torch's one-cycle schedule, which returns Lightning's scheduler dictionary."""

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from lockstep.models.schedules import Interval, TrainingLength, entry


def one_cycle(optimizer: Optimizer, training: TrainingLength, interval: Interval, **cycle: Any) -> dict[str, Any]:
    """Smith & Topin 2018, arXiv:1708.07120; the optimizer's learning rate is the highest one.

    The momentum, or an Adam's beta1, goes the other way, from torch's 0.95 to 0.85 and back, where the optimizer has one.
    """
    total = training.length(interval)
    highest = [group["lr"] for group in optimizer.param_groups]
    has_momentum = "momentum" in optimizer.defaults or "betas" in optimizer.defaults
    scheduler = OneCycleLR(optimizer, max_lr=highest, total_steps=total, cycle_momentum=has_momentum, **cycle)
    return entry(scheduler, interval)
