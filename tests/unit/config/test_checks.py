"""Every kind of refusal, each one line for a person."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from refusals import changed, refusal, validate

from lockstep.build import build
from lockstep.config.checks import check
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError


def test_shipped_config_passes(shipped: DictConfig) -> None:
    validate(shipped)


def test_seed_zero_is_a_seed(shipped: DictConfig) -> None:
    validate(changed(shipped, seed=0))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", -1, "seed=-1: is outside numpy's range; use 0 to 4294967295"),
        ("name", None, "name=null: use a value of type str"),
        ("lr_scaling", "cubic", "lr_scaling=cubic: use a value of type Literal['none', 'linear', 'sqrt']"),
        ("datamodule.batch_size", 0, "datamodule.batch_size=0: is less than 1; use at least 1"),
        ("trainer.devices", 0, "trainer.devices=0: is not a number of devices; use at least 1, auto, or a list of GPU ids"),
        ("model.optimizer.lr", "???", "model.optimizer.lr=???: a value is required"),
        ("optimized_metric", "val/f1", "optimized_metric=val/f1: the model declares train/loss, train/acc, "),
        ("callbacks.early_stopping", {"monitor": "val/auc"}, "callbacks.early_stopping.monitor=val/auc: the model declares "),
        ("trainer.limit_val_batches", 0, "optimized_metric=val/acc: needs validation, and trainer.limit_val_batches is 0"),
    ],
)
def test_what_can_not_start_is_refused_by_its_key(key: str, value: object, message: str, shipped: DictConfig) -> None:
    assert refusal(changed(shipped, **{key: value})).startswith(message)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.devices", -1),
        ("trainer.devices", [2, 0]),
        ("trainer.precision", 16),
        ("trainer.max_time", "00:00:00:01"),
        ("trainer.max_epochs", None),
        ("trainer.limit_train_batches", 3),
        ("model.optimizer.lr", 0),
        ("datamodule.augment", {"crop": 0, "flip": True}),
    ],
)
def test_values_on_the_edge_are_accepted(key: str, value: object, shipped: DictConfig) -> None:
    check(changed(shipped, **{key: value}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("callbacks.progress", True, "callbacks.progress=true: use a group with a _target_"),
        ("trainer.max_time", "1h", "trainer: "),
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


def test_a_test_metric_needs_a_test(shipped: DictConfig) -> None:
    validate(changed(shipped, optimized_metric="test/acc"))
    assert refusal(changed(shipped, test=False)) == "optimized_metric=test/acc: needs test=true"


@pytest.mark.parametrize("name", ["data/dev.csv", None])
def test_without_a_fraction_validation_needs_a_split_of_the_data_s_own(
    name: str | None, shipped: DictConfig, tmp_path: Path
) -> None:
    for file in ("evaluation.csv", "train.csv", *([] if name is None else [name])):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    cfg = changed(shipped, **{"datamodule.val_fraction": 0, "datamodule.data_dir": str(tmp_path)})
    if name is None:
        assert refusal(cfg).startswith("optimized_metric=val/acc: needs validation; datamodule.val_fraction is 0; set it above")
    else:
        validate(cfg)
