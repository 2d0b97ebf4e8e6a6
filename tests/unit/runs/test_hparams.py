"""What TensorBoard shows of a run that has finished."""

from pathlib import Path

import pytest
from in_process import composed, prepared
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from lockstep.launchers.environment import SWEPT_KEYS
from lockstep.runs.results import hyperparameters, log_result, swept, write_session


def test_tensorboard_has_each_point_once(tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, "logger=tensorboard")
    trainer.fit(model, datamodule)
    trainer.test(model, datamodule, verbose=False)
    log_result(composed(run_dir=tmp_path), trainer, {}, {"val/acc": 0.5, "test/acc": 0.25})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    steps = {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert all(len(points) == len(set(points)) for points in steps.values())
    assert (steps["val/acc"], steps["train/loss"], steps["test/acc"]) == ([3, 7, 11], [3, 7, 11], [12])
    points = {tag: [event.value for event in events.Scalars(tag)] for tag in ("val/acc", "Optimized/val/acc")}
    assert points["Optimized/val/acc"] == [*points["val/acc"], 0.5]  # the last is that of the best checkpoint
    assert steps["Optimized/val/acc"] == [3, 7, 11, 12]
    assert min(steps) == "Optimized/val/acc"  # TensorBoard shows them in their order
    assert not any("best" in tag for tag in steps)


FACTS = {"world_size": 2, "global_batch_size": 128, "lr": 0.2, "precision": "32-true", "seed": 3}


def test_hyperparameters_are_the_options_of_groups_too_and_nothing_twice(tmp_path: Path) -> None:
    overrides = ["model=cnn", "model/optimizer=sgd", "model.optimizer.lr=0.2", "seed=3", "model.label_smoothing=0.1", "~logger"]
    cfg = composed(*overrides, run_dir=tmp_path)
    values = hyperparameters(cfg, {"model": "cnn", "model/optimizer": "sgd"}, overrides, FACTS)
    chosen = {"model": "cnn", "model/optimizer": "sgd", "model.optimizer.lr": 0.2, "seed": 3, "model.label_smoothing": 0.1}
    assert values == chosen | {"world_size": 2, "global_batch_size": 128}


def test_in_a_job_of_a_sweep_nothing_but_what_is_swept_has_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three keys leave room for the metric in 1280 pixels."""
    monkeypatch.setenv(SWEPT_KEYS, "trainer.devices model.optimizer.lr seed")
    keys = ["trainer.devices=2", "model.optimizer.lr=0.2", "seed=3"]
    cfg = composed(*keys, run_dir=tmp_path)
    assert hyperparameters(cfg, {}, keys, FACTS) == {"trainer.devices": 2, "model.optimizer.lr": 0.2, "seed": 3}


def test_in_a_job_of_a_sweep_they_are_what_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["trainer=cpu", "model=cnn", "+x.y=1"]
    assert swept(overrides) == overrides
    monkeypatch.setenv(SWEPT_KEYS, "model x.y")
    assert swept(overrides) == ["model=cnn", "+x.y=1"]


def test_a_run_has_a_record_for_tensorboard(tmp_path: Path) -> None:
    write_session(tmp_path, {"model": "cnn", "lr": 0.5, "compile": True})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    content = {tag: events.summary_metadata[tag].plugin_data.content for tag in events.summary_metadata}
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG]).hparams
    assert (start["model"].string_value, start["lr"].number_value, start["compile"].string_value) == ("cnn", 0.5, "true")
    assert metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG]).status == 1  # STATUS_SUCCESS


def test_a_run_without_a_best_checkpoint_has_one_too(tmp_path: Path) -> None:
    """Its logger's writer is closed by then."""
    datamodule, model, trainer = prepared(
        tmp_path, "logger=tensorboard", "callbacks.best_checkpoint=null", "trainer.max_epochs=1"
    )
    trainer.fit(model, datamodule)
    log_result(composed(run_dir=tmp_path), trainer, {}, {"val/acc": 0.5})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert metadata.SESSION_START_INFO_TAG in events.summary_metadata
