"""A config becomes a datamodule, a model and a trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import prepared
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn

from lockstep.trainer.batchnorm import Synchronised


def built(folder: Path, *overrides: str) -> tuple[Any, Any, Any]:
    return prepared(folder, "trainer.accelerator=cpu", "logger=csv", *overrides, base=())


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.devices=2", "trainer.num_nodes=2"],
        ["datamodule.batch_size=7", "datamodule.val_fraction=0.5", "datamodule.standardize=true"],
    ],
)
def test_initial_weights_are_the_seed_s_whatever_else_changes(overrides: list[str], tmp_path: Path) -> None:
    initial = built(tmp_path)[1].state_dict()
    torch.rand(17)  # nor do they depend on what was drawn before
    assert not differences(built(tmp_path, *overrides)[1].state_dict(), initial)
    assert differences(built(tmp_path, *overrides, "seed=1")[1].state_dict(), initial)


def test_batchnorm_is_synchronised_where_there_is_more_than_one_process(tmp_path: Path) -> None:
    """Also a layer that a hook of Lightning's adds, as configure_model."""
    for devices in (1, 2):
        _, model, trainer = built(tmp_path, "model=cnn", f"trainer.devices={devices}")
        callbacks = [callback for callback in trainer.callbacks if isinstance(callback, LambdaCallback)]
        for callback in callbacks:
            callback.setup(trainer, model, stage="fit")
        model.later = nn.BatchNorm1d(3)
        for callback in callbacks:
            callback.on_fit_start(trainer, model)
        layers = (model.net.features[0][1], model.later)
        assert [isinstance(layer, Synchronised) for layer in layers] == [devices == 2] * 2


def test_a_callback_can_be_taken_out_and_the_last_checkpoint_is_saved_last(tmp_path: Path) -> None:
    def own(*overrides: str) -> list[str]:
        return [type(one).__name__ for one in built(tmp_path, *overrides)[2].callbacks]

    assert {"BestCheckpoint", "Preemption", "Watchdog", "SteppedRate", "CounterBasedRandomness"} <= {*own()}
    assert own().index("BestCheckpoint") < own().index("LastCheckpoint")
    assert "BestCheckpoint" not in own("callbacks.best_checkpoint=null")
    assert {"LastCheckpoint", "Preemption", "SteppedRate", "CounterBasedRandomness"} <= {*own("~callbacks")}
