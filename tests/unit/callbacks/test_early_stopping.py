"""A run that was stopped early, and broken off before it had finished, does not train on."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import LightningModule

from lockstep.callbacks import EarlyStopping


def trainer(loss: float = 1.0) -> Any:
    strategy = SimpleNamespace(reduce_boolean_decision=lambda decision, **_: decision)
    state = SimpleNamespace(fn="fit")
    return SimpleNamespace(
        should_stop=False,
        callback_metrics={"val/loss": torch.tensor(loss)},
        strategy=strategy,
        state=state,
        fast_dev_run=False,
        sanity_checking=False,
        current_epoch=0,
        world_size=1,
        global_rank=0,
    )


@pytest.mark.parametrize(("loss", "patience", "stops"), [(1.0, 3, True), (1.0, 5, False), (3.0, 3, False)])
def test_a_stop_by_a_threshold_in_the_first_epoch_is_remembered(loss: float, patience: int, stops: bool) -> None:
    settings: dict[str, Any] = {"monitor": "val/loss", "stopping_threshold": 2.0, "check_on_train_epoch_end": False}
    first, run = EarlyStopping(patience=3, **settings), trainer(loss)
    first.on_validation_end(run, LightningModule())
    assert run.should_stop is (loss < 2.0)
    again, resumed = EarlyStopping(patience=patience, **settings), trainer()
    again.load_state_dict(first.state_dict())
    again.on_fit_start(resumed, LightningModule())
    assert resumed.should_stop is stops  # with another patience it is asked anew
    assert again.patience == patience
