"""A run that was stopped early, and broken off before it had finished, does not train on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import last, prepared, trained
from lightning import Callback, LightningModule, Trainer
from plain_lightning import LitClassifier
from test_plain_lightning import fitted

from lockstep.extras.early_stopping.early_stopping import EarlyStopping
from lockstep.runs.results import ended_by


def trainer(loss: float = 1.0) -> Any:
    strategy = SimpleNamespace(reduce_boolean_decision=lambda decision, **_: decision)
    state = SimpleNamespace(fn="fit")
    return SimpleNamespace(
        should_stop=False,
        callback_metrics={"val/loss": torch.tensor(loss)},
        strategy=strategy,
        state=state,
        fast_dev_run=False,
        sanity_checking=False,
        current_epoch=0,
        world_size=1,
        global_rank=0,
    )


@pytest.mark.parametrize(("loss", "patience", "stops"), [(1.0, 3, True), (1.0, 5, False), (3.0, 3, False)])
def test_a_stop_by_a_threshold_in_the_first_epoch_is_remembered(loss: float, patience: int, stops: bool) -> None:
    settings: dict[str, Any] = {"monitor": "val/loss", "stopping_threshold": 2.0, "check_on_train_epoch_end": False}
    first, run = EarlyStopping(patience=3, **settings), trainer(loss)
    first.on_validation_end(run, LightningModule())
    assert run.should_stop is (loss < 2.0)
    again, resumed = EarlyStopping(patience=patience, **settings), trainer()
    again.load_state_dict(first.state_dict())
    again.on_fit_start(resumed, LightningModule())
    assert resumed.should_stop is stops  # with another patience it is asked anew
    assert again.patience == patience


def test_why_it_has_ended_is_known_when_it_is_resumed_too(tmp_path: Path) -> None:
    options = ("callbacks=early_stopping", "callbacks.early_stopping.patience=1", "callbacks.early_stopping.min_delta=1.0")
    _, trainer = trained(tmp_path, *options)
    words = "early stopping: Monitored metric val/acc did not improve in the last 1 records. Best score: "
    assert ended_by(trainer).startswith(words)
    _, resumed = trained(tmp_path, *options, ckpt_path=tmp_path / "checkpoints" / "last.ckpt")
    assert ended_by(resumed) == ended_by(trainer)


class StopBeforeTheEnd(Callback):
    """Breaks off where kill -9 might: training is over, nothing has been saved of its end."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        raise ZeroDivisionError


def test_a_run_that_had_stopped_early_does_not_train_on(tmp_path: Path) -> None:
    """A metric that gets no better by 1 stops it after the third epoch, patience 2."""
    options = ("trainer.max_epochs=9", "callbacks=early_stopping", "callbacks.early_stopping.patience=2")
    options += ("callbacks.early_stopping.min_delta=1.0", "guards.checkpoint.every_n_steps=null")
    whole, trainer = trained(tmp_path / "whole", *options)
    assert (trainer.current_epoch, trainer.global_step) == (3, 12)
    run = tmp_path / "run"
    datamodule, model, broken = prepared(run, *options, extra=[StopBeforeTheEnd()])
    with pytest.raises(ZeroDivisionError):
        broken.fit(model, datamodule)
    assert last(run)["global_step"] == 8  # of the end of the second epoch: the third is trained again
    again, _ = trained(run, *options, ckpt_path=run / "checkpoints" / "last.ckpt")
    assert not differences(whole["state_dict"], again["state_dict"])
    _, trainer = trained(run, *options, ckpt_path=run / "checkpoints" / "last.ckpt")  # it is over
    assert trainer.global_step == 12
    assert not differences(again["state_dict"], last(run)["state_dict"])


class Recovers(LitClassifier):
    """Its metric gets worse, and then better than ever."""

    def on_validation_epoch_end(self) -> None:
        self.log("val_loss", [1.0, 2.0, 2.0, 0.5, 0.4, 0.3][self.current_epoch])


def stopped(run: Path, kind: str, *options: str, **more: Any) -> Trainer:
    settings = f"{{_target_: {kind}.EarlyStopping, monitor: val_loss, patience: 2}}"
    own = ("model._target_=test_early_stopping.Recovers", f"+callbacks.stop={settings}", "trainer.limit_train_batches=1")
    return fitted(run, *own, "trainer.max_epochs=6", *options, **more)


def test_a_metric_that_recovers_before_min_epochs_does_not_stop_the_run(tmp_path: Path) -> None:
    """It asks to stop in the third epoch, which min_epochs puts off."""
    kind = "lockstep.extras.early_stopping.early_stopping"
    trainer = stopped(tmp_path / "run", kind, "+trainer.min_epochs=5")
    assert (trainer.current_epoch, ended_by(trainer)) == (6, "trainer.max_epochs=6")
    assert stopped(tmp_path / "other", kind, "+trainer.min_epochs=3").current_epoch == 3


def test_a_recovery_does_not_take_back_what_something_else_has_asked_for() -> None:
    stop, run = EarlyStopping("val/loss", patience=1, check_on_train_epoch_end=False), trainer(1.0)
    for loss, asked in ((1.0, False), (2.0, True), (0.5, True)):  # another callback asks in the second epoch, and this one
        run.callback_metrics["val/loss"], run.should_stop = torch.tensor(loss), run.should_stop or asked
        stop.on_validation_end(run, LightningModule())
    assert run.should_stop


def test_another_patience_is_that_of_a_run_that_goes_on_by_lightning_s_own_callback_too(tmp_path: Path) -> None:
    kind = "lightning.pytorch.callbacks"
    assert stopped(tmp_path / "run", kind).current_epoch == 3
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    trainer = stopped(tmp_path / "run", kind, "callbacks.stop.patience=10", ckpt_path=last)
    assert (trainer.current_epoch, trainer.early_stopping_callback.patience) == (6, 10)


def test_a_stop_by_the_clock_is_not_remembered_as_its_own() -> None:
    early, run = EarlyStopping("val/loss", patience=3), trainer()
    run.should_stop = True  # by another callback, Lightning's Timer say
    early.on_validation_end(run, LightningModule())
    assert early.state_dict()["has_stopped"] is False
