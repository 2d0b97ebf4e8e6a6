"""Learning rates, factor by factor."""

import math
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import lightning
import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from lockstep.datamodules import RandomRegression
from lockstep.errors import ConfigError
from lockstep.models import Regressor, schedules
from lockstep.models.schedules import TrainingLength
from lockstep.nets import MLP

TEN_EPOCHS = TrainingLength(steps=100, epochs=10, steps_per_epoch=10)
FOREVER = TrainingLength(steps=math.inf, epochs=math.inf, steps_per_epoch=10)
WHEN = {"interval": "step", "frequency": 1, "monitor": None, "warmup_steps": 0, "warmup_epochs": 0}
one_cycle: Any = schedules.one_cycle  # called with words that are only known at run time to be an interval or a mode
plateau: Any = schedules.plateau


def optimizer(lr: float = 1.0, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, **options)


def factors(schedule: Callable[..., dict[str, Any]], length: TrainingLength, count: int, **options: Any) -> list[float]:
    """The learning rate, of 1, before each of the first `count` advances of the schedule."""
    sgd = optimizer()
    scheduler = schedule(sgd, length, **options)["scheduler"]
    found = []
    for _ in range(count):
        found.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    return found


def test_constant_stays() -> None:
    assert factors(schedules.constant, TEN_EPOCHS, 100, **WHEN) == [1.0] * 100


def test_warmup_by_steps_is_linear() -> None:
    found = factors(schedules.constant, TEN_EPOCHS, 7, **WHEN | {"warmup_steps": 4})
    assert found == [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 1, 1]


def test_warmup_by_epochs_is_as_many_steps() -> None:
    by_epochs = factors(schedules.constant, TEN_EPOCHS, 30, **WHEN | {"warmup_epochs": 2})
    assert by_epochs == factors(schedules.constant, TEN_EPOCHS, 30, **WHEN | {"warmup_steps": 20})
    assert by_epochs[:2] == [1 / 21, 2 / 21]
    assert by_epochs[19:21] == [20 / 21, 1]


def test_warmup_by_steps_and_epochs_adds_up() -> None:
    both = factors(schedules.constant, TEN_EPOCHS, 20, **WHEN | {"warmup_epochs": 1, "warmup_steps": 5})
    assert both == factors(schedules.constant, TEN_EPOCHS, 20, **WHEN | {"warmup_steps": 15})


def test_warmup_of_a_schedule_in_epochs() -> None:
    """20 steps are 2 epochs."""
    assert factors(schedules.constant, TEN_EPOCHS, 4, **WHEN | {"interval": "epoch", "warmup_steps": 20}) == [1 / 3, 2 / 3, 1, 1]
    assert factors(schedules.constant, TEN_EPOCHS, 3, **WHEN | {"interval": "epoch", "warmup_epochs": 1}) == [1 / 2, 1, 1]


def test_a_schedule_of_every_other_step_changes_at_every_other_step() -> None:
    found = factors(schedules.constant, TEN_EPOCHS, 4, **WHEN | {"frequency": 2, "warmup_steps": 4})
    assert found == [1 / 5, 1 / 5, 3 / 5, 3 / 5]


def test_cosine_falls_from_one_to_the_least_factor() -> None:
    found = factors(schedules.cosine, TEN_EPOCHS, 102, **WHEN, min_factor=0.2)
    assert found[0] == 1
    assert found[25] == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2, rel=1e-12)
    assert found[50] == pytest.approx(0.6, rel=1e-12)  # the middle of 1 and 0.2
    assert found[100] == pytest.approx(0.2, rel=1e-12)
    assert found[101] == pytest.approx(0.2, rel=1e-12)  # and no further
    assert all(b < a for a, b in pairwise(found[:101]))


def test_cosine_begins_after_the_warmup_and_ends_with_training() -> None:
    found = factors(schedules.cosine, TEN_EPOCHS, 101, **WHEN | {"warmup_steps": 20}, min_factor=0.0)
    assert found[19] == 20 / 21
    assert found[20] == 1
    assert found[60] == pytest.approx(0.5, rel=1e-12)  # half of 80 steps
    assert found[100] == pytest.approx(0, abs=1e-12)


def test_cosine_by_epochs() -> None:
    found = factors(schedules.cosine, TEN_EPOCHS, 11, **WHEN | {"interval": "epoch"}, min_factor=0.0)
    assert (found[0], found[5], found[10]) == (1, pytest.approx(0.5), pytest.approx(0, abs=1e-12))


def test_cosine_changed_every_ten_steps() -> None:
    found = factors(schedules.cosine, TEN_EPOCHS, 101, **WHEN | {"frequency": 10}, min_factor=0.0)
    assert (found[0], found[9], found[50], found[100]) == (1, 1, pytest.approx(0.5), pytest.approx(0, abs=1e-12))
    assert len(set(found)) == 11


def test_step_multiplies_every_so_many_epochs() -> None:
    found = factors(schedules.step, TEN_EPOCHS, 7, **WHEN | {"interval": "epoch"}, step_size=3, gamma=0.1)
    assert found == [1, 1, 1, 0.1, 0.1, 0.1, pytest.approx(0.01)]


def test_step_counts_from_the_end_of_the_warmup() -> None:
    found = factors(schedules.step, TEN_EPOCHS, 6, **WHEN | {"warmup_steps": 2}, step_size=2, gamma=0.5)
    assert found == [1 / 3, 2 / 3, 1, 1, 0.5, 0.5]


def test_one_cycle_moves_at_every_interval() -> None:
    with pytest.raises(ConfigError, match="frequency=2: one_cycle moves at every interval"):
        one_cycle(optimizer(), TEN_EPOCHS, interval="step", frequency=2, monitor=None)


@pytest.mark.parametrize(("interval", "total"), [("step", 100), ("epoch", 10)])
def test_one_cycle_is_as_long_as_training(interval: str, total: int) -> None:
    cycle = {"pct_start": 0.3, "div_factor": 25.0, "final_div_factor": 1e4}
    sgd = optimizer(lr=0.5, momentum=0.9)
    entry = one_cycle(sgd, TEN_EPOCHS, interval=interval, frequency=1, monitor=None, **cycle)
    scheduler = entry["scheduler"]
    assert isinstance(scheduler, OneCycleLR)
    assert scheduler.total_steps == total
    rates, momenta = [], []
    for _ in range(total):
        rates.append(sgd.param_groups[0]["lr"])
        momenta.append(sgd.param_groups[0]["momentum"])
        sgd.step()
        scheduler.step()  # after the last step too, as Lightning does
    assert rates[0] == pytest.approx(0.5 / 25)
    assert rates[-1] == pytest.approx(0.5 / 25 / 1e4)
    assert max(rates) <= 0.5
    assert momenta[0] == momenta[-1] == pytest.approx(0.95)  # the other way: high when the rate is low


def test_one_cycle_reaches_the_optimizer_s_rate() -> None:
    cycle = {"pct_start": 0.3, "div_factor": 25.0, "final_div_factor": 1e4}
    length = TrainingLength(steps=10, epochs=1, steps_per_epoch=10)
    found = factors(one_cycle, length, 10, interval="step", frequency=1, monitor=None, **cycle)
    assert found[2] == max(found) == pytest.approx(1)  # step 0.3 * 10, the third


def test_one_cycle_without_momentum_moves_the_rate_alone() -> None:
    adagrad = torch.optim.Adagrad([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    one_cycle(adagrad, TEN_EPOCHS, interval="step", frequency=1, monitor=None, div_factor=25.0)
    assert adagrad.param_groups[0]["lr"] == pytest.approx(1 / 25)


@pytest.mark.parametrize(("mode", "metrics"), [("min", [3.0, 2.0, 2.0, 2.0, 2.0, 2.0]), ("max", [0.1, 0.2, 0.2, 0.2, 0.1, 0.2])])
def test_plateau_waits_and_then_multiplies(mode: str, metrics: list[float]) -> None:
    sgd = optimizer()
    entry = plateau(sgd, FOREVER, "epoch", 1, "val/loss", mode=mode, gamma=0.1, patience=2)
    assert isinstance(entry["scheduler"], ReduceLROnPlateau)
    rates = []
    for metric in metrics:
        entry["scheduler"].step(metric)
        rates.append(sgd.param_groups[0]["lr"])
    assert rates == [1, 1, 1, 1, 0.1, 0.1]  # the second is the best; the third without improvement is one too many


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        (schedules.constant, {"warmup_steps": 0, "warmup_epochs": 0}),
        (schedules.cosine, {"warmup_steps": 0, "warmup_epochs": 0, "min_factor": 0.0}),
        (schedules.step, {"warmup_steps": 0, "warmup_epochs": 0, "step_size": 1, "gamma": 0.1}),
        (plateau, {"mode": "min", "gamma": 0.1, "patience": 1}),
    ],
)
def test_lightning_is_told_when_to_advance(schedule: Callable[..., dict[str, Any]], options: dict[str, Any]) -> None:
    entry = schedule(optimizer(), TEN_EPOCHS, interval="epoch", frequency=3, monitor="val/loss", **options)
    assert {key: entry[key] for key in ("interval", "frequency", "monitor")} == {
        "interval": "epoch",
        "frequency": 3,
        "monitor": "val/loss",
    }


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_schedule_with_an_end_is_refused_where_training_has_none(interval: str) -> None:
    when = WHEN | {"interval": interval}
    message = r"^model.lr_scheduler=\.\.\.: this schedule needs an end: set trainer.max_epochs or trainer.max_steps$"
    with pytest.raises(ConfigError, match=message):
        schedules.cosine(optimizer(), FOREVER, min_factor=0.0, **when)
    with pytest.raises(ConfigError, match=message):
        one_cycle(optimizer(), FOREVER, interval=interval, frequency=1, monitor=None)


def test_schedules_without_an_end_train_forever() -> None:
    assert factors(schedules.constant, FOREVER, 3, **WHEN | {"warmup_epochs": 1}) == [1 / 11, 2 / 11, 3 / 11]
    assert factors(schedules.step, FOREVER, 3, **WHEN, step_size=1, gamma=0.5) == [1, 0.5, 0.25]


def rates_of_a_run(
    accumulate: int,
    frequency: int,
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
    datamodule = RandomRegression(4, 2, length, 8, 8, True, noise=0.1, batch_size=8 // accumulate, drop_last=False)
    schedule = schedule or partial(schedules.constant, **WHEN | {"warmup_steps": 4, "frequency": frequency})
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


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_lightning_advances_a_schedule_by_optimizer_steps(accumulate: int) -> None:
    assert rates_of_a_run(accumulate, frequency=1) == [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 1]


def test_lightning_advances_a_schedule_every_other_step() -> None:
    assert rates_of_a_run(accumulate=1, frequency=2) == [1 / 5, 1 / 5, 3 / 5, 3 / 5, 1, 1]


def test_accumulation_does_not_change_a_schedule_with_a_frequency() -> None:
    assert rates_of_a_run(accumulate=2, frequency=2) == rates_of_a_run(accumulate=1, frequency=2)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_schedule_advances_after_the_tail_step_too(accumulate: int) -> None:
    """20 samples at a global batch of 8: steps over 8, 8 and 4; accumulating 2 batches of 4, the last over one batch."""
    rates = rates_of_a_run(accumulate, frequency=1, length=20, epochs=2)
    assert rates == [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 1]


def test_a_frequency_counts_steps_across_epochs() -> None:
    """Steps 1 and 2, 3 and 4, 5 and 6 share a rate, as `_factors` and `one_cycle` compute their lengths."""
    assert rates_of_a_run(1, frequency=2, length=24, epochs=2) == [1 / 5, 1 / 5, 3 / 5, 3 / 5, 1, 1]


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 6), (2, 6), (4, 6)])
def test_a_task_tells_its_schedule_how_long_training_lasts(accumulate: int, steps: int) -> None:
    horizons: list[TrainingLength] = []

    def schedule(optimizer: torch.optim.Optimizer, length: TrainingLength) -> dict[str, Any]:
        horizons.append(length)
        return schedules.constant(optimizer, length, **WHEN)

    assert len(rates_of_a_run(accumulate, 1, schedule)) == steps
    assert horizons == [TrainingLength(steps=6, epochs=1.0, steps_per_epoch=6)]


def test_steps_without_epochs_tell_a_schedule_how_long_training_lasts() -> None:
    """Lightning then knows the number of steps before it has counted the batches of an epoch."""
    horizons: list[TrainingLength] = []

    def schedule(optimizer: torch.optim.Optimizer, length: TrainingLength) -> dict[str, Any]:
        horizons.append(length)
        return schedules.constant(optimizer, length, **WHEN)

    assert len(rates_of_a_run(1, 1, schedule, epochs=-1, max_steps=9)) == 9
    assert horizons == [TrainingLength(steps=9, epochs=1.5, steps_per_epoch=6)]
