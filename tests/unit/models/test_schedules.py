"""Learning rates, factor by factor."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lockstep.errors import ConfigError
from lockstep.models import schedules
from lockstep.models.schedules import TrainingLength

TEN_EPOCHS = TrainingLength(steps=100, epochs=10, steps_per_epoch=10)
FOREVER = TrainingLength(steps=math.inf, epochs=math.inf, steps_per_epoch=10)


def optimizer(lr: float = 1.0, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, **options)


def factors(schedule: Callable[..., dict[str, Any]], length: TrainingLength, count: int, **options: Any) -> list[float]:
    """The learning rate, of 1, before each of the first `count` advances of the schedule."""
    sgd = optimizer()
    scheduler = schedule(sgd, length, **options)["scheduler"]
    result = []
    for _ in range(count):
        result.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    return result


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ({}, [1.0] * 100),
        ({"warmup_steps": 4}, [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 1, 1]),
        ({"warmup_epochs": 2}, [*(n / 21 for n in range(1, 22)), *[1] * 9]),  # 20 steps
        ({"warmup_epochs": 1, "warmup_steps": 5}, [*(n / 16 for n in range(1, 17)), *[1] * 4]),  # 15 steps
    ],
)
def test_warmup_is_linear_and_what_follows_constant(lengths: dict[str, int], expected: list[float]) -> None:
    assert factors(schedules.constant, TEN_EPOCHS, len(expected), **lengths) == expected


@pytest.mark.parametrize(("warmup", "interval"), [(0, "epoch"), (1, "step")])
def test_a_rate_that_stays_is_not_written_at_each_step(warmup: int, interval: str) -> None:
    assert schedules.constant(optimizer(), TEN_EPOCHS, warmup_steps=warmup)["interval"] == interval


COSINE, LINEAR, WSD = schedules.cosine, schedules.linear, schedules.wsd


@pytest.mark.parametrize(
    ("schedule", "options", "points"),
    [
        # from one to the least factor, after the warm-up, and no further
        (COSINE, {"min_factor": 0.2}, {0: 1, 25: 0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2, 50: 0.6, 100: 0.2, 101: 0.2}),
        (COSINE, {"warmup_steps": 20}, {19: 20 / 21, 20: 1, 60: 0.5, 100: 0}),  # at 60, half of 80 steps
        (LINEAR, {}, {0: 1, 1: 0.99, 50: 0.5, 100: 0, 101: 0}),
        (LINEAR, {"warmup_steps": 19, "min_factor": 0.2}, {0: 0.05, 18: 0.95, 19: 1, 100: 0.2}),
        # stable until its last part: 20 of the 80 steps after the warm-up
        (WSD, {"decay": 0.2}, {0: 1, 80: 1, 90: 0.5, 100: 0, 101: 0}),
        (WSD, {"warmup_steps": 20, "min_factor": 0.5, "decay": 0.25}, {9: 10 / 21, 20: 1, 80: 1, 90: 0.75, 100: 0.5}),
        (WSD, {"decay": 1.0}, {0: 1, 50: 0.5, 100: 0}),  # never stable: linear
    ],
)
def test_a_schedule_falls_as_its_formula_says(schedule: Any, options: dict[str, Any], points: dict[int, float]) -> None:
    result = factors(schedule, TEN_EPOCHS, max(points) + 1, **{"min_factor": 0.0} | options)
    assert {at: result[at] for at in points} == pytest.approx(points, rel=1e-12, abs=1e-12)


def test_before_it_decays_wsd_is_the_same_at_every_horizon() -> None:
    shorter, longer = (TrainingLength(steps=steps, epochs=steps / 10, steps_per_epoch=10) for steps in (100, 200))
    options = {"warmup_steps": 10, "min_factor": 0.0, "decay": 0.2}
    assert factors(WSD, shorter, 82, **options) == factors(WSD, longer, 82, **options)


def test_only_a_schedule_with_an_end_is_refused_where_training_has_none() -> None:
    message = r"^model.lr_scheduler=\.\.\.: needs an end; set trainer.max_epochs or trainer.max_steps$"
    with pytest.raises(ConfigError, match=message):
        schedules.cosine(optimizer(), FOREVER, min_factor=0.0)
    assert factors(schedules.constant, FOREVER, 3, warmup_epochs=1) == [1 / 11, 2 / 11, 3 / 11]


def test_torch_s_one_cycle_is_as_long_as_training() -> None:
    sgd = optimizer(lr=0.5, momentum=0.9)
    scheduler = schedules.one_cycle(sgd, TEN_EPOCHS, pct_start=0.3, div_factor=25.0, final_div_factor=1e4)["scheduler"]
    assert isinstance(scheduler, torch.optim.lr_scheduler.OneCycleLR)
    rates: list[float] = []
    for _ in range(100):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()  # after the last step too, as Lightning does
    assert (rates[0], max(rates), rates[-1]) == pytest.approx((0.5 / 25, 0.5, 0.5 / 25 / 1e4), rel=0.02)
