"""What a run's record and TensorBoard say came out of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fits import composed, prepared, trained
from lightning import Callback, LightningModule, Trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lockstep.callbacks import BestCheckpoint
from lockstep.launchers.command_line import CommandLine
from lockstep.launchers.environment import SWEPT_KEYS
from lockstep.runs.hparams import hyperparameters, swept, write_session
from lockstep.runs.results import collect_metrics, ended_by, log_hparams


class OfOnesOwn(LightningModule):
    """It knows nothing of Lockstep; its accuracy is best in the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return (self.weight - batch[0]).square().mean()

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("val/acc", (0.5, 0.9, 0.2)[self.current_epoch])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_metrics_are_the_best_checkpoint_s_of_any_model(tmp_path: Path) -> None:
    best = BestCheckpoint(dirpath=str(tmp_path), filename="best", monitor="val/acc", mode="max")
    settings: Any = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(max_epochs=3, callbacks=[best], num_sanity_val_steps=0, default_root_dir=tmp_path, **settings)
    loader = DataLoader(TensorDataset(torch.ones(4, 1)))
    trainer.fit(OfOnesOwn(), loader, loader)
    assert float(trainer.callback_metrics["val/acc"]) == pytest.approx(0.2)
    assert collect_metrics(trainer)["val/acc"] == pytest.approx(0.9)


class Validations(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.steps.append(trainer.global_step)


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [(["trainer.max_steps=3"], [3]), (["trainer.max_steps=5"], [4]), (["trainer.max_steps=4"], [4])],
    ids=["within its first epoch", "within its second", "at its end"],
)
def test_a_run_that_max_steps_ends_before_its_first_validation_is_validated(
    overrides: list[str], steps: list[int], tmp_path: Path
) -> None:
    validations = Validations()
    datamodule, model, trainer = prepared(tmp_path, *overrides, extra=[validations])
    trainer.fit(model, datamodule)
    assert validations.steps == steps
    assert collect_metrics(trainer)["val/acc"] > 0


def test_continued_it_is_not_validated_where_it_would_not_have_been(tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, "trainer.max_steps=4")
    trainer.fit(model, datamodule)
    last, validations = tmp_path / "checkpoints" / "last.ckpt", Validations()
    datamodule, model, trainer = prepared(tmp_path, "trainer.max_steps=6", extra=[validations], ckpt_path=last)
    trainer.fit(model, datamodule, ckpt_path=last)
    assert validations.steps == []


class AsksToStop(Callback):
    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.should_stop = True


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["trainer.max_epochs=1"], "trainer.max_epochs=1"),
        (["trainer.max_steps=4"], "trainer.max_steps=4"),
        (["trainer.max_epochs=-1", "trainer.max_time='00:00:00:01'"], "trainer.max_time, after "),
        ([], "trainer.should_stop, which the model or a callback has set"),
    ],
)
def test_why_training_has_ended(overrides: list[str], why: str, tmp_path: Path) -> None:
    _, trainer = trained(tmp_path, *overrides, extra=[] if overrides else [AsksToStop()])
    assert ended_by(trainer).startswith(why)


def test_tensorboard_has_each_point_once(tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, "logger=tensorboard")
    trainer.fit(model, datamodule)
    trainer.test(model, datamodule, verbose=False)
    cfg = composed(run_dir=tmp_path)
    log_hparams(trainer, cfg, CommandLine(), {}, {"val/acc": 0.5, "test/acc": 0.25})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    steps = {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert all(len(points) == len(set(points)) for points in steps.values())
    assert (steps["val/acc"], steps["train/loss"], steps["test/acc"]) == ([3, 7, 11], [3, 7, 11], [12])
    assert events.Scalars("best/val/acc")[0].value == 0.5
    assert "best/test/acc" not in steps


FACTS = {"world_size": 2, "global_batch_size": 128, "lr": 0.2, "precision": "32-true", "seed": 3}


def test_hyperparameters_are_the_options_of_groups_too_and_nothing_twice(tmp_path: Path) -> None:
    overrides = ["model=cnn", "model/optimizer=sgd", "model.optimizer.lr=0.2", "seed=3", "model.label_smoothing=0.1", "~logger"]
    cfg = composed(*overrides, run_dir=tmp_path)
    values = hyperparameters(cfg, {"model": "cnn", "model/optimizer": "sgd"}, overrides, FACTS)
    chosen = {"model": "cnn", "model/optimizer": "sgd", "model.optimizer.lr": 0.2, "seed": 3, "model.label_smoothing": 0.1}
    assert values == chosen | {"world_size": 2, "global_batch_size": 128, "lr": 0.2, "precision": "32-true"}


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
    log_hparams(trainer, composed(run_dir=tmp_path), CommandLine(), {}, {"val/acc": 0.5})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert metadata.SESSION_START_INFO_TAG in events.summary_metadata
