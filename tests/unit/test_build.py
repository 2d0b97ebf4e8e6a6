"""From a config to a datamodule, a model and a trainer."""

from collections.abc import Callable

import pytest
import torch
from built import SMALL, built, same_weights
from lightning.pytorch.callbacks import LambdaCallback
from omegaconf import DictConfig
from torch import nn

from lockstep.trainer.batchnorm import Synchronised


@pytest.fixture(scope="module")
def initial(compose: Callable[..., DictConfig]) -> dict[str, torch.Tensor]:
    """The weights that seed 0 draws."""
    return built(compose(*SMALL))[1].state_dict()


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.devices=4"],
        ["trainer.devices=2", "trainer.num_nodes=2"],
        ["datamodule.batch_size=7", "datamodule.val_fraction=0.5", "datamodule.standardize=true"],
    ],
)
def test_initial_weights_are_the_seed_s_whatever_else_changes(
    overrides: list[str], initial: dict[str, torch.Tensor], compose: Callable[..., DictConfig]
) -> None:
    torch.rand(17)  # nor do they depend on what was drawn before
    assert same_weights(built(compose(*SMALL, *overrides))[1].state_dict(), initial)


def test_another_seed_draws_other_weights(initial: dict[str, torch.Tensor], compose: Callable[..., DictConfig]) -> None:
    assert not same_weights(built(compose(*SMALL, "seed=1"))[1].state_dict(), initial)


def test_the_model_fits_the_data_and_has_the_planned_learning_rate(compose: Callable[..., DictConfig]) -> None:
    cfg = compose(*SMALL, "trainer.devices=4", "datamodule.batch_size=64", "lr_scaling=linear", "model.optimizer.lr=1e-3")
    _, model, _ = built(cfg)
    assert model.net.layers[1].in_features == 64  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue, reportOptionalSubscript]
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert model.make_optimizer(model.parameters()).param_groups[0]["lr"] == 4e-3  # 1e-3 * (4 * 64) / 64


# The trainer


def test_batchnorm_is_synchronised_where_there_is_more_than_one_process(compose: Callable[..., DictConfig]) -> None:
    def is_synchronised(*overrides: str) -> bool:
        _, model, trainer = built(compose("model=cnn", "trainer.accelerator=cpu", *overrides))
        for callback in trainer.callbacks:
            if isinstance(callback, LambdaCallback):
                callback.setup(trainer, model, stage="fit")
        return isinstance(model.net.features[0][1], Synchronised)  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]

    _, model, trainer = built(compose(*SMALL, "trainer.devices=2"))
    model.later = nn.BatchNorm1d(3)  # as by a hook of Lightning's, configure_model say
    for callback in trainer.callbacks:
        if isinstance(callback, LambdaCallback):
            callback.on_fit_start(trainer, model)
    assert isinstance(model.later, Synchronised)
    assert is_synchronised("trainer.devices=2")
    assert not is_synchronised("trainer.devices=2", "trainer.sync_batchnorm=false")
    assert not is_synchronised("trainer.devices=1")


def test_a_callback_can_be_taken_out_and_the_last_checkpoint_is_saved_last(compose: Callable[..., DictConfig]) -> None:
    def own(*overrides: str) -> list[str]:
        return [type(one).__name__ for one in built(compose("trainer=cpu", *overrides))[2].callbacks]

    assert {"BestCheckpoint", "Preemption", "Watchdog", "SteppedRate", "CounterBasedRandomness"} <= {*own()}
    assert own().index("BestCheckpoint") < own().index("LastCheckpoint")
    assert "BestCheckpoint" not in own("callbacks.best_checkpoint=null")
