"""The results in a run's record."""

from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import composed, prepared, trained
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lockstep.callbacks import BestCheckpoint
from lockstep.config.plan import Plan
from lockstep.runs.results import Records, collect_facts, collect_metrics, collect_result, ended_by, read_best

SETTINGS: Any = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}


class OfOnesOwn(LightningModule):
    """It knows nothing of Lockstep; its accuracy is best in the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return (self.weight - batch[0]).square().mean()

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("val/acc", (0.5, 0.9, 0.9, 0.2)[self.current_epoch])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_metrics_are_the_best_checkpoint_s_of_any_model_the_last_of_equal_ones(tmp_path: Path) -> None:
    best = BestCheckpoint(dirpath=str(tmp_path), filename="best", monitor="val/acc", mode="max")
    trainer = Trainer(max_epochs=4, callbacks=[best], num_sanity_val_steps=0, default_root_dir=tmp_path, **SETTINGS)
    loader = DataLoader(TensorDataset(torch.ones(4, 1)))
    trainer.fit(OfOnesOwn(), loader, loader)
    assert float(trainer.callback_metrics["val/acc"]) == pytest.approx(0.2)
    assert read_best(trainer)["epoch"] == 2
    assert collect_metrics(trainer, read_best(trainer))["val/acc"] == pytest.approx(0.9)


class OneStepForBoth(OfOnesOwn):
    """Its test is its validation, by whose name it logs."""

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("acc", batch[0].mean())
        self.log("test_loss", batch[0].mean())

    def test_step(self, batch: list[Tensor], index: int) -> None:
        self.validation_step(batch, index)


def test_what_a_test_logs_by_a_name_of_the_validation_is_not_lost(tmp_path: Path) -> None:
    best = BestCheckpoint(dirpath=str(tmp_path), filename="best", monitor="acc", mode="max")
    trainer = Trainer(max_epochs=1, callbacks=[best], default_root_dir=tmp_path, **SETTINGS)
    loader, test = (DataLoader(TensorDataset(torch.full((4, 1), value))) for value in (1.0, 3.0))
    trainer.fit(OneStepForBoth(), loader, loader)
    trainer.test(OneStepForBoth(), test, verbose=False)
    assert collect_metrics(trainer, read_best(trainer)) == {"acc": 1.0, "test/acc": 3.0, "test_loss": 3.0, "val/test_loss": 1.0}


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
    assert collect_metrics(trainer, read_best(trainer))["val/acc"] > 0


def test_continued_it_is_not_validated_where_it_would_not_have_been(tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, "trainer.max_steps=4")
    trainer.fit(model, datamodule)
    last, validations = tmp_path / "checkpoints" / "last.ckpt", Validations()
    datamodule, model, trainer = prepared(tmp_path, "trainer.max_steps=6", extra=[validations], ckpt_path=last)
    trainer.fit(model, datamodule, ckpt_path=last)
    assert validations.steps == []


def test_the_time_of_a_run_that_was_killed_during_its_test_is_that_of_its_training(tmp_path: Path) -> None:
    _, trainer = trained(tmp_path, "trainer.max_epochs=1")
    facts, last = collect_facts(trainer), tmp_path / "checkpoints" / "last.ckpt"
    datamodule, model, trainer = prepared(tmp_path, "trainer.max_epochs=1", ckpt_path=last)
    trainer.fit(model, datamodule, ckpt_path=last)
    again = collect_facts(trainer)
    assert again["train_time"] == pytest.approx(facts["train_time"], rel=0.5)
    assert again["samples_per_second"] is None
    assert again["samples_trained"] == facts["samples_trained"]


class AsksToStop(Callback):
    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.should_stop = True


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["trainer.max_epochs=1"], "trainer.max_epochs=1"),
        (["trainer.max_steps=6"], "trainer.max_steps=6"),
        (["trainer.max_epochs=-1", "trainer.max_time='00:00:00:01'"], "trainer.max_time, after "),
        ([], "trainer.should_stop, which the model or a callback has set"),
    ],
)
def test_why_training_has_ended_and_where_within_an_epoch(
    overrides: list[str], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An epoch has four batches; a resumption begins with the next one, which a line says."""
    with caplog.at_level("INFO"):
        _, trainer = trained(tmp_path, *overrides, extra=[] if overrides else [AsksToStop()])
    assert ended_by(trainer).startswith(why)
    epoch, batches = divmod(trainer.global_step, 4)
    line = f"within epoch {epoch + 1}, after {batches} of its batches: a run that goes on from here leaves out the others."
    assert [f"Training has ended {line}"] * (batches > 0) == [m for m in caplog.messages if m.startswith("Training has ended")]


class HasFacts(Callback):
    def facts(self) -> dict[str, int]:
        return {"steps": -1, "of_a_stranger": 1}


class Recorded(Records):
    def facts(self) -> dict[str, int]:
        return {"of_mine": 1}


def test_the_facts_of_callbacks_that_derive_from_records_are_recorded_and_no_others(tmp_path: Path) -> None:
    _, trainer = trained(tmp_path, "trainer.max_steps=1", extra=[HasFacts(), Recorded()])
    facts = collect_facts(trainer)
    assert (facts["steps"], facts["of_mine"], "of_a_stranger" in facts) == (1, 1, False)


def test_no_epochs_train_nothing_and_end_quietly(tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, "trainer.max_epochs=0")
    trainer.fit(model, datamodule)
    cfg = composed("trainer.accelerator=cpu", run_dir=tmp_path)
    result = collect_result(cfg, Plan.from_config(cfg), trainer, 0.0)
    assert (result["optimized_metric"], result["ended_by"]) == (None, "trainer.max_epochs=0")


def test_an_evaluation_has_trained_nothing(tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path)
    trainer.test(model, datamodule, verbose=False)
    assert ended_by(trainer) is None
