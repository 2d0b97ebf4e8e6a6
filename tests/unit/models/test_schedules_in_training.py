"""Schedules in a run of Lightning's: when they are advanced, and for how long."""

import sys
from pathlib import Path
from typing import Any

import pytest
from in_process import BARE, Rates, prepared

from lockstep.models import schedules
from lockstep.models.schedules import TrainingLength

told: list[TrainingLength] = []


def noted(optimizer: Any, training: TrainingLength, **when: Any) -> dict[str, Any]:
    told.append(training)
    return schedules.constant(optimizer, training, **when)


def rates_of_a_run(folder: Path, accumulate: int, *options: str, length: int = 48) -> list[float]:
    """The learning rate of each optimizer step: 48 samples at a global batch of 8 are 6 steps."""
    sys.modules["test_schedules_in_training"] = sys.modules[__name__]
    told.clear()
    data = ("datamodule=random_regression", f"datamodule.length={length}", "datamodule.drop_last=false")
    data += (f"datamodule.batch_size={8 // accumulate}", f"trainer.accumulate_grad_batches={accumulate}")
    schedule = ("model.lr_scheduler._target_=test_schedules_in_training.noted", "model.lr_scheduler.warmup_steps=4")
    fixed = ("model=linear", "model.optimizer.lr=1.0", "optimized_metric=train/loss", "trainer.limit_val_batches=0")
    datamodule, model, trainer = prepared(folder, *fixed, *data, *schedule, *options, base=BARE, extra=[rates := Rates()])
    trainer.fit(model, datamodule)
    return rates.seen


RISING = [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 1]


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_lightning_advances_a_schedule_by_optimizer_steps_and_it_knows_their_number(accumulate: int, tmp_path: Path) -> None:
    assert rates_of_a_run(tmp_path, accumulate, "trainer.max_epochs=1") == RISING
    assert told == [TrainingLength(steps=6, epochs=1.0, steps_per_epoch=6)]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_shorter_last_step_of_an_epoch_is_one(accumulate: int, tmp_path: Path) -> None:
    """20 samples at a global batch of 8: steps over 8, 8 and 4; accumulating 2 batches of 4, the last over one batch."""
    assert rates_of_a_run(tmp_path, accumulate, "trainer.max_epochs=2", length=20) == RISING


def test_the_number_of_steps_counts_where_it_ends_training(tmp_path: Path) -> None:
    """Lightning then knows it before it has counted the batches of an epoch."""
    assert len(rates_of_a_run(tmp_path, 1, "trainer.max_epochs=-1", "trainer.max_steps=9")) == 9
    assert told == [TrainingLength(steps=9, epochs=1.5, steps_per_epoch=6)]
