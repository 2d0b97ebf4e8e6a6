"""Combine the values that ranks have logged under one name; reduced_logs.py exchanges them.

Lightning reduces only values logged with sync_dist=True. Otherwise each rank keeps its own value, and rank zero's is written to
the logs and decides the best checkpoint.
"""

import math
from typing import NamedTuple

from torch import Tensor


class Logged(NamedTuple):
    """The value of one rank under a key. names: those in trainer.callback_metrics; weight: number of samples of a mean."""

    hook: str
    names: tuple[str, ...]
    reduction: str  # mean, sum, max or min
    value: float
    weight: float


def combine(parts: list[Logged]) -> float:
    """Return the value over all ranks."""
    values, reduction = [part.value for part in parts], parts[0].reduction
    if reduction in ("max", "min"):
        return max(values) if reduction == "max" else min(values)
    if reduction == "sum":
        return math.fsum(values)
    weight = math.fsum(part.weight for part in parts)
    return math.fsum(values) / weight if weight else math.nan


def combine_on_device(reduction: str, values: Tensor, weights: Tensor) -> Tensor:
    """Return a step's value over all ranks, without waiting for the device. Ranks without samples do not count."""
    counts = weights > 0
    if reduction in ("max", "min"):
        sign = 1 if reduction == "max" else -1
        return sign * (sign * values).where(counts, -math.inf).amax()
    counted = values.where(counts, 0.0)
    return counted.sum() if reduction == "sum" else (counted * weights).sum() / weights.sum()


def explain_difference(parts: list[Logged], logging: int, shares: int) -> list[str]:
    """Return why a name, logged by `logging` of the processes, can't have the value of one process; empty if it can."""
    hook, name = parts[0].hook.partition(".")[0], parts[0].names[0]
    if logging < shares:
        return [f"{name} is logged by {logging} of {shares} processes alone"]
    if len({part.value for part in parts}) == 1:
        return []
    if "_step" in hook or "_batch_" in hook:
        return []
    advice = "log a torchmetrics.Metric, or what self.all_gather returns"
    return [f"{name}, logged in {hook}, differs between processes, and their {parts[0].reduction} is kept: {advice}"]
