"""Every kind of refusal, each one line for a person."""

from typing import Any

import pytest
from omegaconf import DictConfig
from refusals import changed, refusal, validate

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError


def test_seed_zero_is_a_seed(shipped: DictConfig) -> None:
    validate(changed(shipped, seed=0))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.optimizer.lr", "???", "model.optimizer.lr=???: a value is required"),
        ("callbacks.early_stopping", {"monitor": "val/auc"}, "callbacks.early_stopping.monitor=val/auc: the model declares "),
    ],
)
def test_what_can_not_start_is_refused_by_its_key(key: str, value: object, message: str, shipped: DictConfig) -> None:
    assert refusal(changed(shipped, **{key: value})).startswith(message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("callbacks.progress", True, "callbacks.progress=true: use a group with a _target_"),
        ("datamodule.augment", {"pad": 1}, "datamodule.augment: CropFlip.__init__() got an unexpected keyword argument 'pad'"),
        ("datamodule.fold", 1, "datamodule.fold=1: is not one of datamodule.folds=None; use 0 to 0"),
    ],
)
def test_what_a_constructor_refuses_is_one_line_with_its_key(key: str, value: Any, message: str, shipped: DictConfig) -> None:
    cfg = changed(shipped, **{key: value})
    with pytest.raises(ConfigError) as refused:
        build(cfg, Plan.from_config(cfg))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
