"""Two of torch's schedules; each returns Lightning's scheduler dictionary."""

from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from lockstep.errors import config_error
from lockstep.models.schedules import Interval, TrainingLength, entry


def one_cycle(
    optimizer: Optimizer, training: TrainingLength, interval: Interval, frequency: int, monitor: str | None, **cycle: Any
) -> dict[str, Any]:
    """Smith & Topin 2018, arXiv:1708.07120; the optimizer's learning rate is the highest one.

    The momentum, or an Adam's beta1, goes the other way, from torch's 0.95 to 0.85 and back, where the optimizer has one.
    """
    if frequency != 1:
        raise config_error("model.lr_scheduler.frequency", frequency, "one_cycle moves at every interval; use 1")
    total = training.length(interval)
    highest = [group["lr"] for group in optimizer.param_groups]
    has_momentum = "momentum" in optimizer.defaults or "betas" in optimizer.defaults
    scheduler = OneCycleLR(optimizer, max_lr=highest, total_steps=total, cycle_momentum=has_momentum, **cycle)
    return entry(scheduler, interval, frequency, monitor)


def plateau(
    optimizer: Optimizer,
    _training: TrainingLength,
    interval: Interval,
    frequency: int,
    monitor: str,
    mode: Literal["min", "max"],
    gamma: float,
    patience: int,
) -> dict[str, Any]:
    if interval != "epoch":
        raise config_error("model.lr_scheduler.interval", interval, "a plateau is looked for after an epoch; use epoch")
    return entry(ReduceLROnPlateau(optimizer, mode=mode, factor=gamma, patience=patience), interval, frequency, monitor)
