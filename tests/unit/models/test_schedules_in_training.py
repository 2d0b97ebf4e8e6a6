"""Schedules in a run of Lightning's: when they are advanced, and for how long."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning
import pytest
import torch
from synthetic import Vectors

from lockstep.models import Regressor, schedules
from lockstep.models.schedules import TrainingLength
from lockstep.nets import MLP

WHEN = {"interval": "step", "warmup_steps": 0, "warmup_epochs": 0}


def rates_of_a_run(
    accumulate: int,
    schedule: Callable[..., dict[str, Any]] | None = None,
    length: int = 48,
    epochs: int = 1,
    max_steps: int = -1,
) -> list[float]:
    """The learning rate of each optimizer step: 48 samples at a global batch of 8 are 6 steps."""

    class Rates(lightning.Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
            rates.append(optimizer.param_groups[0]["lr"])

    rates: list[float] = []
    datamodule = Vectors(4, 2, length, batch_size=8 // accumulate, drop_last=False)
    schedule = schedule or partial(schedules.constant, **WHEN | {"warmup_steps": 4})
    model = Regressor(
        net=MLP((4,), 2, []),
        spec=datamodule.spec,
        optimizer=partial(torch.optim.SGD, lr=1.0),
        lr_scheduler=schedule,
        metrics=["loss"],
    )
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The '.*_dataloader' does not have many workers")
        lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=epochs,
            max_steps=max_steps,
            accumulate_grad_batches=accumulate,
            limit_val_batches=0,
            callbacks=[Rates()],
            **quiet,
        ).fit(model, datamodule)
    return rates


RISING = [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 1]


@pytest.mark.parametrize(
    ("accumulate", "run"),
    [
        *((accumulate, {}) for accumulate in (1, 2, 4)),
        # 20 samples at a global batch of 8: steps over 8, 8 and 4; accumulating 2 batches of 4, the last over one batch
        *((accumulate, {"length": 20, "epochs": 2}) for accumulate in (1, 2)),
    ],
)
def test_lightning_advances_a_schedule_by_optimizer_steps(accumulate: int, run: dict[str, int]) -> None:
    assert rates_of_a_run(accumulate, **run) == RISING


@pytest.mark.parametrize(
    ("accumulate", "run", "length"),
    [
        *((accumulate, {}, TrainingLength(steps=6, epochs=1.0, steps_per_epoch=6)) for accumulate in (1, 2, 4)),
        # Lightning then knows the number of steps before it has counted the batches of an epoch
        (1, {"epochs": -1, "max_steps": 9}, TrainingLength(steps=9, epochs=1.5, steps_per_epoch=6)),
    ],
)
def test_a_task_tells_its_schedule_how_long_training_lasts(accumulate: int, run: dict[str, int], length: TrainingLength) -> None:
    told: list[TrainingLength] = []

    def schedule(optimizer: torch.optim.Optimizer, length: TrainingLength) -> dict[str, Any]:
        told.append(length)
        return schedules.constant(optimizer, length, **WHEN)

    assert len(rates_of_a_run(accumulate, schedule, **run)) == length.steps
    assert told == [length]
