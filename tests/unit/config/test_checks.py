"""Every kind of refusal, each one line for a person."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict
from refusals import changed, refusal, validate

from lockstep.config.checks import GROUPS, check
from lockstep.config.rules import ROOT


def test_shipped_config_passes(shipped: DictConfig) -> None:
    validate(shipped)


def test_seed_zero_is_a_seed(shipped: DictConfig) -> None:
    validate(changed(shipped, seed=0))


@pytest.mark.parametrize("key", ROOT)
def test_a_root_key_refuses_what_makes_no_sense_and_says_what_does(key: str, shipped: DictConfig) -> None:
    nonsense: Any = 5 if ROOT[key].words.startswith("accepted is a list of") else ["nonsense"]
    message = refusal(changed(shipped, **{key: nonsense}))
    assert message == f"{key}={nonsense}: {ROOT[key].words}"
    assert "accepted is" in message


@pytest.mark.parametrize(
    "key", ["seed", "trainer.max_epochs", "model.net.width", "guards.watchdog.seconds", "datamodule.batch_size"]
)
def test_yes_is_not_a_number(key: str, shipped: DictConfig) -> None:
    """Python's True is an int; a config's true is not 1."""
    assert refusal(changed(shipped, **{key: True})).startswith(f"{key}=true: accepted is a")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", "", "name='': accepted is text"),
        ("name", None, "name=null: accepted is text"),
        ("name", "a/../../b", "name=a/../../b: accepted is text, of which no part is .."),
        ("model.net.hidden", [3, 2**63], "model.net.hidden.1=9223372036854775808: accepted is an integer of 64 bits"),
        ("seed", -1, "seed=-1: accepted is an integer between 0 and 4294967295"),
        ("seed", None, "seed=null: accepted is an integer between 0 and 4294967295"),
        ("seed", 1.0, "seed=1.0: accepted is an integer between 0 and 4294967295"),
        ("seed", "7", "seed='7': accepted is an integer between 0 and 4294967295"),
        ("test", 1, "test=1: accepted is true, false"),
        (
            "trainer.precision",
            8,
            "trainer.precision=8: accepted is 32-true, 32, bf16-mixed, 16-mixed, bf16-true, 16-true, 64-true, 64, bf16, 16",
        ),
        ("optimized_mode", "most", "optimized_mode=most: accepted is max, min"),
        ("lr_scaling", "cubic", "lr_scaling=cubic: accepted is none, linear, sqrt, adam"),
        ("trainer.accelerator", "tpu", "trainer.accelerator=tpu: accepted is auto, cpu, gpu, cuda, mps"),
        ("trainer.max_epochs", -2, "trainer.max_epochs=-2: accepted is an integer of at least 1, or -1 for no limit, or null"),
        ("trainer.max_epochs", 2.5, "trainer.max_epochs=2.5: accepted is an integer of at least 1, or -1 for no limit, or null"),
        ("trainer.max_epochs", 0, "trainer.max_epochs=0: accepted is an integer of at least 1"),
        ("trainer.max_steps", 0, "trainer.max_steps=0: accepted is an integer of at least 1"),
        ("trainer.max_time", "1h", "trainer.max_time=1h: accepted is a time as DD:HH:MM:SS, or null"),
        ("trainer.max_time", "00:00:00:00", "trainer.max_time=00:00:00:00: accepted is a time as DD:HH:MM:SS, or null"),
        ("trainer.max_time", "9999999999:00:00:00", "trainer.max_time=9999999999:00:00:00: accepted is a time as DD:HH:MM:SS"),
        ("trainer.limit_train_batches", 1.5, "trainer.limit_train_batches=1.5: accepted is a number of batches"),
        ("trainer.limit_train_batches", -1, "trainer.limit_train_batches=-1: accepted is a number of batches"),
        ("trainer.limit_train_batches", 0, "trainer.limit_train_batches=0: accepted is a number of batches of at least 1"),
        ("trainer.val_check_interval", 0, "trainer.val_check_interval=0: accepted is a number of batches of at least 1"),
        ("trainer.num_sanity_val_steps", "x", "trainer.num_sanity_val_steps=x: accepted is an integer of at least -1"),
        ("trainer.deterministic", 1, "trainer.deterministic=1: accepted is true, false, warn"),
        ("trainer.strategy.process_group_backend", "mpi", "trainer.strategy.process_group_backend=mpi: accepted is nccl, gloo"),
        ("trainer.strategy.timeout", 0, "trainer.strategy.timeout=0: accepted is a number between 1 and 1e+07"),
        ("trainer.gradient_clip_val", -0.5, "trainer.gradient_clip_val=-0.5: accepted is a number of at least 0, or null"),
        ("datamodule.batch_size", 0, "datamodule.batch_size=0: accepted is an integer of at least 1"),
        ("datamodule.val_fraction", 0.95, "datamodule.val_fraction=0.95: accepted is a number between 0 and 0.9"),
        ("datamodule.augment", {"pad": 1}, "datamodule.augment.pad=1: no such key; accepted are crop, flip, padding"),
        ("datamodule.augment", {"crop": -1}, "datamodule.augment.crop=-1: accepted is an integer of at least 0"),
        ("model.optimizer.lr", float("nan"), "model.optimizer.lr=nan: accepted is a number of at least 0"),
        ("model.optimizer.lr", "1e-3x", "model.optimizer.lr=1e-3x: accepted is a number of at least 0"),
        ("model.label_smoothing", 1.5, "model.label_smoothing=1.5: accepted is a number between 0 and 1"),
        ("model.lr_scheduler.interval", "batch", "model.lr_scheduler.interval=batch: accepted is step, epoch"),
    ],
)
def test_out_of_range_or_of_another_type_is_refused(key: str, value: object, message: str, shipped: DictConfig) -> None:
    assert refusal(changed(shipped, **{key: value})).startswith(message)


@pytest.mark.parametrize("devices", [0, -2, 1.5, "two", "2", None, True, [], [0, 0], [-1], ["0"], [True]])
def test_devices_that_are_no_number_auto_or_list_of_gpus_are_refused(devices: object, shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{"trainer.devices": devices}))
    assert message.startswith("trainer.devices=")
    assert message.endswith(": accepted is a number of at least 1, auto, or a list of GPU ids")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.devices", "auto"),
        ("trainer.devices", -1),
        ("trainer.devices", [2, 0]),
        ("trainer.precision", 16),
        ("trainer.precision", "bf16-mixed"),
        ("trainer.precision", "bf16"),
        ("trainer.max_time", "00:00:00:01"),
        ("trainer.max_epochs", None),
        ("trainer.limit_train_batches", 1.0),
        ("trainer.limit_train_batches", 3),
        ("trainer.limit_val_batches", 0.5),
        ("trainer.deterministic", "warn"),
        ("trainer.gradient_clip_val", 0),
        ("name", "a..b/c"),
        ("guards.preemption.every_n_steps", 2**63 - 1),
        ("datamodule.val_fraction", 0.9),
        ("model.optimizer.lr", 0),
        ("datamodule.augment", {"crop": 0, "flip": True}),
        ("callbacks.best_checkpoint", None),
    ],
)
def test_values_on_the_edge_are_accepted(key: str, value: object, shipped: DictConfig) -> None:
    check(changed(shipped, **{key: value}))


def test_rules_for_keys_that_a_config_lacks_are_not_asked(shipped: DictConfig) -> None:
    """A model or datamodule of one's own need not take what ours take."""
    with open_dict(shipped):
        for key in ("batch_size", "val_fraction", "augment", "drop_last"):
            del shipped.datamodule[key]
        del shipped.model["label_smoothing"]
    validate(shipped)


PLAIN: dict[str, dict[str, Any]] = {
    "datamodule": {"augment": "strong", "shuffle": "by_length", "seed": None, "folds": 1, "fold": None, "val_fraction": 0.95}
    | {"dataset": None, "data_dir": "made/by/prepare_data", "pin_memory": "auto", "batch_size": None},
    "model": {
        "metrics": ["f1"],
        "torchmetrics": ["f1"],
        "compile": "default",
        "optimizer": "adam",
        "lr_scheduler": {"interval": 5},
    },
}


@pytest.mark.parametrize(("group", "key"), [(group, key) for group, keys in PLAIN.items() for key in keys])
def test_arguments_of_a_plain_class_mean_what_it_says(group: str, key: str, shipped: DictConfig) -> None:
    """Its option extends none of ours, whose keys may have the same names."""
    with open_dict(shipped):
        shipped[group] = {"_target_": "own.Module", key: PLAIN[group][key]}
    validate(shipped)


def test_what_torch_s_loaders_take_is_asked_of_a_plain_datamodule_too(shipped: DictConfig) -> None:
    with open_dict(shipped):
        shipped.datamodule = {"_target_": "own.Data", "batch_size": 0}
    assert refusal(shipped) == "datamodule.batch_size=0: accepted is an integer of at least 1, or null"


def test_validations_across_epochs_are_counted_in_batches(shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{"trainer.check_val_every_n_epoch": None}))
    expected = "needs trainer.val_check_interval as a number of batches, which is 1; accepted is an integer"
    assert message == f"trainer.check_val_every_n_epoch=null: {expected}"
    validate(changed(shipped, **{"trainer.check_val_every_n_epoch": None, "trainer.val_check_interval": 3}))


def test_persistent_workers_without_workers_are_refused(shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{"datamodule.persistent_workers": True}))
    assert message == "datamodule.persistent_workers=true: needs datamodule.num_workers of at least 1"
    validate(changed(shipped, **{"datamodule.num_workers": 1}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimized_metric", "val/f1"),
        ("callbacks.best_checkpoint.monitor", "val_acc"),
        ("callbacks.early_stopping", {"monitor": "val/auc"}),
        ("model.lr_scheduler.monitor", "validation/loss"),
    ],
)
def test_a_metric_the_model_does_not_have_is_refused_under_its_key(key: str, value: Any, shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{key: value}))
    declared = "train/loss, train/acc, train/top3, val/loss, val/acc, val/top3, test/loss, test/acc, test/top3"
    named, metric = (f"{key}.monitor", value["monitor"]) if isinstance(value, dict) else (key, value)
    mode = "; optimized_mode says whether more of it is better" if key == "optimized_metric" else ""
    assert message == f"{named}={metric}: the model declares {declared}{mode}"


def test_a_model_that_declares_no_metrics_may_monitor_any(shipped: DictConfig) -> None:
    with open_dict(shipped):
        del shipped.model["metrics"]
    validate(changed(shipped, optimized_metric="val/whatever"))


def test_a_test_metric_needs_a_test(shipped: DictConfig) -> None:
    validate(changed(shipped, optimized_metric="test/acc"))
    assert refusal(changed(shipped, test=False)) == "optimized_metric=test/acc: needs test=true"


@pytest.mark.parametrize("none", [0, 0.0])
def test_a_validation_metric_needs_validation(none: float, shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{"trainer.limit_val_batches": none}))
    assert message.startswith(("optimized_metric=val/acc: ", f"trainer.limit_val_batches={none}: "))


def test_a_regressor_with_the_metric_of_a_classifier_is_refused(compose: Callable[..., DictConfig]) -> None:
    message = refusal(compose("model=linear"))
    declared = "train/loss, train/mae, val/loss, val/mae, test/loss, test/mae"
    assert message.startswith(f"optimized_metric=val/acc: the model declares {declared}; optimized_mode says")


def test_a_missing_value_is_named(compose: Callable[..., DictConfig]) -> None:
    assert refusal(compose("model.optimizer.lr=???")) == "model.optimizer.lr=???: a value is required"


def test_a_fold_without_folds_is_refused(shipped: DictConfig) -> None:
    shipped.datamodule.fold = 1  # it would be the very run of fold 0
    assert refusal(shipped) == "datamodule.fold=1: needs datamodule.folds; accepted without it is 0"


@pytest.mark.parametrize("name", ["validation-00000-of-00001.parquet", "data/dev.csv", "val/cat.png", None])
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


def test_a_data_dir_that_prepare_data_makes_need_not_exist(shipped: DictConfig, tmp_path: Path) -> None:
    validate(changed(shipped, **{"datamodule.data_dir": str(tmp_path / "nowhere")}))


def test_a_data_dir_that_is_a_number_is_refused(shipped: DictConfig) -> None:
    assert refusal(changed(shipped, **{"datamodule.data_dir": 2024})) == "datamodule.data_dir=2024: accepted is text"


def test_a_seed_that_numpy_does_not_take_is_refused(shipped: DictConfig) -> None:
    assert refusal(changed(shipped, seed=2**32)).startswith("seed=4294967296: accepted is an integer")


@pytest.mark.parametrize("key", [*GROUPS, "callbacks.best_checkpoint", "guards.checkpoint", "logger.tensorboard"])
@pytest.mark.parametrize("value", [5, "adam"])
def test_text_where_a_group_of_values_is_meant(key: str, value: Any, shipped: DictConfig) -> None:
    OmegaConf.update(shipped, key, value, merge=False)
    assert refusal(shipped) == f"{key}={value}: accepted is a group; override what is in it, {key}.NAME=VALUE"


@pytest.mark.parametrize("target", [5, None, {"a": 1}])
def test_a_target_is_text(target: Any, shipped: DictConfig) -> None:
    OmegaConf.update(shipped, "callbacks.best_checkpoint._target_", target, merge=False)
    assert refusal(shipped).startswith("callbacks.best_checkpoint._target_=")


@pytest.mark.parametrize("key", ["model", "model.net", "datamodule"])
def test_what_lightning_cli_calls_a_class_is_refused_by_its_name_here(key: str, shipped: DictConfig) -> None:
    """It stayed a dict, which a module took for its net."""
    OmegaConf.update(shipped, key, {"class_path": "a.Net", "init_args": {"width": 8}}, merge=False)
    accepted = "accepted is _target_: a.Net, with what is in init_args beside it"
    assert refusal(shipped) == f"{key}.class_path=a.Net: is LightningCLI's; {accepted}"


@pytest.mark.parametrize("key", ["seed", "test", "trainer.devices", "trainer.sync_batchnorm", "optimized_metric"])
def test_what_was_taken_out_and_is_needed(key: str, shipped: DictConfig) -> None:
    parent, _, name = key.rpartition(".")
    with open_dict(shipped):
        del (OmegaConf.select(shipped, parent) if parent else shipped)[name]
    assert refusal(shipped) == f"{key}=???: a value is required"


def test_a_validation_that_never_comes_is_refused(shipped: DictConfig) -> None:
    message = refusal(changed(shipped, **{"trainer.check_val_every_n_epoch": 11}))
    assert message.startswith("trainer.check_val_every_n_epoch=11: optimized_metric=val/acc needs a validation")
    validate(changed(shipped, **{"trainer.max_epochs": -1}))
