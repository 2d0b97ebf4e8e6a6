"""A run that was stopped early, and broken off before it had finished, does not train on."""

from pathlib import Path

import pytest
from bitwise import differences
from in_process import last, prepared, trained
from lightning import Callback, LightningModule, Trainer
from plain_lightning import LitClassifier
from test_plain_lightning import fitted

from lockstep.runs.results import ended_by


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


RECOVERS = ("model._target_=test_early_stopping.Recovers", "trainer.limit_train_batches=1", "trainer.max_epochs=6")


def test_a_metric_that_recovers_before_min_epochs_does_not_stop_the_run(tmp_path: Path) -> None:
    """It asks to stop in the third epoch, which min_epochs puts off."""
    settings = "{_target_: lockstep.callbacks.early_stopping.EarlyStopping, monitor: val_loss, patience: 2}"
    trainer = fitted(tmp_path, *RECOVERS, f"+callbacks.stop={settings}", "+trainer.min_epochs=5")
    assert (trainer.current_epoch, ended_by(trainer)) == (6, "trainer.max_epochs=6")


STOP = "+callbacks.stop={_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: val_loss, patience: "


def test_lightning_s_own_takes_the_patience_that_a_resumption_is_given(tmp_path: Path) -> None:
    assert fitted(tmp_path, *RECOVERS, STOP + "2}").current_epoch == 3
    assert fitted(tmp_path, *RECOVERS, STOP + "9}", ckpt_path=tmp_path / "checkpoints" / "last.ckpt").current_epoch == 6
