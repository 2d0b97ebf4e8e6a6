"""Reasons why a model, its data or its callbacks can't be divided among virtual workers."""

from collections.abc import Iterator
from typing import Any

from lightning import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from lockstep.datamodules.base import DataModule
from lockstep.extras.plain_lightning.callback import PlainLightning
from lockstep.models.task import Task


def objections(trainer: Any, model: Any, callbacks: list[Callback]) -> Iterator[str]:
    """Yield why trainer.exact is refused, with what is accepted."""
    name = type(model).__name__
    if not model.automatic_optimization:
        yield (
            f"{name} has automatic_optimization=False, and steps its optimizers before the gradients of the other virtual "
            "workers are there; use a model with automatic optimization, or null"
        )
    if is_param_in_hook_signature(model.training_step, "dataloader_iter"):
        yield f"{name}.training_step takes a dataloader_iter, which can't be divided; use a batch, or null"
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in callbacks):
        yield "GradientAccumulationScheduler accumulates batches; use a larger batch, or null"
    is_plain = any(isinstance(callback, PlainLightning) for callback in callbacks)
    if not is_plain and not (isinstance(model, Task) and isinstance(trainer.datamodule, DataModule)):
        yield f"{name} or its data are plain Lightning, and guards.plain_lightning is null; use the guard, or null"
