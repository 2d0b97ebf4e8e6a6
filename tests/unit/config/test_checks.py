"""Every kind of refusal, each one line for a person."""

from collections.abc import Callable
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
        ("name", None, "name=null: use text"),
        ("seed", -1, "seed=-1: is outside numpy's range; use 0 to 4294967295"),
        ("test", 1, "test=1: use true or false, or auto"),
        ("lr_scaling", "cubic", "lr_scaling=cubic: use none, linear, sqrt, adam"),
        ("trainer.accelerator", "tpu", "trainer.accelerator=tpu: use auto, cpu, gpu, cuda, mps"),
        ("datamodule.batch_size", 0, "datamodule.batch_size=0: is less than 1; use at least 1"),
        ("datamodule.batch_size", "many", "datamodule.batch_size=many: use an integer, or null"),
        ("trainer.devices", "two", "trainer.devices=two: use an integer, or auto, or a list of integers"),
        ("trainer.devices", 0, "trainer.devices=0: is not a number of devices; use at least 1, auto, or a list of GPU ids"),
        ("trainer.devices", [0, 0], "trainer.devices=[0, 0]: is not a number of devices; use at least 1, auto, or a list"),
    ],
)
def test_out_of_range_or_of_another_type_is_refused(key: str, value: object, message: str, shipped: DictConfig) -> None:
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
        ("trainer.precision", 8, "trainer.precision=8: use "),
        ("trainer.max_time", "1h", "trainer: "),
        ("trainer.limit_train_batches", 1.5, "trainer: You have passed invalid value 1.5 for limit_train_batches"),
        ("datamodule.val_fraction", 0.95, "datamodule.val_fraction=0.95: leaves nothing to train on; use 0 to 0.9"),
        ("datamodule.augment", {"pad": 1}, "datamodule.augment: CropFlip.__init__() got an unexpected keyword argument 'pad'"),
        ("datamodule.persistent_workers", True, "datamodule.persistent_workers=true: there are no workers; use datamodule."),
        ("datamodule.fold", 1, "datamodule.fold=1: is not one of datamodule.folds=None; use 0 to 0"),
        ("model.optimizer.lr", "1e-3x", "model.optimizer.lr=1e-3x: use a number"),
        ("model.net.width", 0, "model.net.width=0: is less than 1; use at least 1"),
        ("guards.watchdog.seconds", 0, "guards.watchdog.seconds=0: is less than 1; use at least 1"),
    ],
)
def test_what_a_constructor_refuses_is_one_line_with_its_key(key: str, value: Any, message: str, shipped: DictConfig) -> None:
    cfg = changed(shipped, **{key: value})
    with pytest.raises(ConfigError) as refused:
        build(cfg, Plan.from_config(cfg))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("optimized_metric", "val/f1"), ("callbacks.early_stopping", {"monitor": "val/auc"})],
)
def test_a_metric_the_model_does_not_have_is_refused_under_its_key(key: str, value: Any, shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{key: value}))
    declared = "train/loss, train/acc, train/top3, val/loss, val/acc, val/top3, test/loss, test/acc, test/top3"
    named, metric = (f"{key}.monitor", value["monitor"]) if isinstance(value, dict) else (key, value)
    mode = ", with its optimized_mode, or null" if key == "optimized_metric" else ""
    assert message == f"{named}={metric}: the model declares {declared}; use one of these{mode}"


def test_a_test_metric_needs_a_test(shipped: DictConfig) -> None:
    validate(changed(shipped, optimized_metric="test/acc"))
    assert refusal(changed(shipped, test=False)) == "optimized_metric=test/acc: needs test=true"


def test_a_validation_metric_needs_validation(shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{"trainer.limit_val_batches": 0}))
    assert message.startswith(("optimized_metric=val/acc: ", "trainer.limit_val_batches=0: "))


def test_a_missing_value_is_named(compose: Callable[..., DictConfig]) -> None:
    assert refusal(compose("model.optimizer.lr=???")) == "model.optimizer.lr=???: a value is required"


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
