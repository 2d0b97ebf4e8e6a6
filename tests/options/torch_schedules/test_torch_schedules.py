"""Torch's one-cycle schedule, as long as training."""

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from lockstep.models import torch_schedules as schedules
from lockstep.models.schedules import TrainingLength

TEN_EPOCHS = TrainingLength(steps=100, epochs=10, steps_per_epoch=10)
CYCLE = {"pct_start": 0.3, "div_factor": 25.0, "final_div_factor": 1e4}
one_cycle: Any = schedules.one_cycle  # called with words that are only known at run time to be an interval


def optimizer(lr: float = 1.0, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, **options)


@pytest.mark.parametrize(("interval", "total"), [("step", 100), ("epoch", 10)])
def test_one_cycle_is_as_long_as_training(interval: str, total: int) -> None:
    sgd = optimizer(lr=0.5, momentum=0.9)
    entry = one_cycle(sgd, TEN_EPOCHS, interval=interval, **CYCLE)
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
