"""Every kind of refusal, each one line for a person."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from refusals import changed, refusal, validate

from lockstep.config.checks import check


def test_shipped_config_passes(shipped: DictConfig) -> None:
    validate(shipped)


def test_seed_zero_is_a_seed(shipped: DictConfig) -> None:
    validate(changed(shipped, seed=0))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", None, "name=null: accepted is text"),
        ("seed", -1, "seed=-1: accepted is an integer between 0 and 4294967295"),
        ("test", 1, "test=1: accepted is true, false"),
        (
            "trainer.precision",
            8,
            "trainer.precision=8: accepted is 32-true, 32, bf16-mixed, 16-mixed, bf16-true, 16-true, 64-true, 64, bf16, 16",
        ),
        ("lr_scaling", "cubic", "lr_scaling=cubic: accepted is none, linear, sqrt, adam"),
        ("trainer.accelerator", "tpu", "trainer.accelerator=tpu: accepted is auto, cpu, gpu, cuda, mps"),
        ("trainer.max_epochs", 0, "trainer.max_epochs=0: accepted is an integer of at least 1"),
        ("trainer.max_time", "1h", "trainer.max_time=1h: accepted is a time as DD:HH:MM:SS, or null"),
        ("trainer.limit_train_batches", 1.5, "trainer.limit_train_batches=1.5: accepted is a number of batches"),
        ("datamodule.batch_size", 0, "datamodule.batch_size=0: accepted is an integer of at least 1"),
        ("datamodule.val_fraction", 0.95, "datamodule.val_fraction=0.95: accepted is a number between 0 and 0.9"),
        ("datamodule.augment", {"pad": 1}, "datamodule.augment.pad=1: no such key; accepted are crop, flip, padding"),
        ("model.optimizer.lr", float("nan"), "model.optimizer.lr=nan: accepted is a number of at least 0"),
        ("model.optimizer.lr", "1e-3x", "model.optimizer.lr=1e-3x: accepted is a number of at least 0"),
    ],
)
def test_out_of_range_or_of_another_type_is_refused(key: str, value: object, message: str, shipped: DictConfig) -> None:
    assert refusal(changed(shipped, **{key: value})).startswith(message)


@pytest.mark.parametrize("devices", [0, "two", None, [0, 0]])
def test_devices_that_are_no_number_auto_or_list_of_gpus_are_refused(devices: object, shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{"trainer.devices": devices}))
    assert message.startswith("trainer.devices=")
    assert message.endswith(": accepted is a number of at least 1, auto, or a list of GPU ids")


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


def test_persistent_workers_without_workers_are_refused(shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{"datamodule.persistent_workers": True}))
    assert message == "datamodule.persistent_workers=true: needs datamodule.num_workers of at least 1"
    validate(changed(shipped, **{"datamodule.num_workers": 1}))


@pytest.mark.parametrize(
    ("key", "value"),
    [("optimized_metric", "val/f1"), ("callbacks.early_stopping", {"monitor": "val/auc"})],
)
def test_a_metric_the_model_does_not_have_is_refused_under_its_key(key: str, value: Any, shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{key: value}))
    declared = "train/loss, train/acc, train/top3, val/loss, val/acc, val/top3, test/loss, test/acc, test/top3"
    named, metric = (f"{key}.monitor", value["monitor"]) if isinstance(value, dict) else (key, value)
    mode = "; optimized_mode says whether more of it is better" if key == "optimized_metric" else ""
    assert message == f"{named}={metric}: the model declares {declared}{mode}"


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
        assert refusal(cfg).startswith(
            "optimized_metric=val/acc: needs validation; datamodule.val_fraction is 0; accepted is above"
        )
    else:
        validate(cfg)


def test_what_lightning_cli_calls_a_class_is_refused_by_its_name_here(shipped: DictConfig) -> None:
    """It stayed a dict, which a module took for its net."""
    OmegaConf.update(shipped, "model", {"class_path": "a.Net", "init_args": {"width": 8}}, merge=False)
    accepted = "accepted is _target_: a.Net, with what is in init_args beside it"
    assert refusal(shipped) == f"model.class_path=a.Net: is LightningCLI's; {accepted}"
