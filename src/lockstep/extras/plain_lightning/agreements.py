"""Agreements of all processes on what one decides, or leaves out, in training."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor
from torch.optim import LBFGS

from lockstep.extras.plain_lightning.lightning_internals import SKIPPED
from lockstep.extras.plain_lightning.streams import gather_number


def agree_on_batches(module: LightningModule, warn: Callable[[str], None], skip: Callable[[], None]) -> None:
    """Let all processes leave out the rest of an epoch if the module's on_train_batch_start returns -1 in one of them, after a
    call of `skip`."""
    begin = module.on_train_batch_start

    @wraps(begin)
    def begun(batch: Any, batch_idx: int) -> Any:
        answer = begin(batch, batch_idx)
        skipping = gather_number(int(isinstance(answer, int) and answer == -1))
        if not any(skipping):
            return answer
        if not all(skipping):
            number = f"{sum(skipping)} of {len(skipping)} processes"
            warn(f"on_train_batch_start returns -1 in {number} alone, and all leave out the rest of the epoch")
        skip()
        return -1

    module.on_train_batch_start = begun


def agree_on_steps(module: LightningModule, agree: Callable[[Any], Any]) -> None:
    """Replace the output of each training step by what `agree` returns for it."""
    step = module.training_step

    @wraps(step)
    def stepped(*arguments: Any, **named: Any) -> Any:
        return agree(step(*arguments, **named))

    module.training_step = stepped


def combine_outputs(output: Any, samples: int, model: LightningModule, finds_unused: bool) -> tuple[Any, int]:
    """Return the output of a training step and the number of samples on which all processes train, if this one does on so many.
    One that returns None takes part in the backward pass with gradients of zero; if all do, the step is skipped."""
    number = sum(gather_number(samples))
    if not number:
        return SKIPPED, 0
    if output is not None:
        return output, number
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if finds_unused:  # where others have used one of these
        parameters = [parameter for parameter in parameters if parameter.grad is not None][:1] or parameters[:1]
    return torch.stack([parameter.reshape(-1)[:0].sum().float() for parameter in parameters]).sum(), number


def average_closures(trainer: Any, mean: Callable[[Any], Tensor]) -> None:
    """Let LBFGS decide by the `mean` over processes of a step's loss: a process that ended its search before the others would
    leave them waiting."""

    def with_mean(_: Any, arguments: Any, options: Any) -> Any:
        closure = (*arguments[1:], options.get("closure"))[0]
        return arguments[:1], {"closure": lambda: mean(closure())}

    for optimizer in trainer.optimizers:
        if isinstance(optimizer, LBFGS):
            optimizer.register_step_pre_hook(with_mean)
