"""Modules that step optimizers of their own, which Lightning does not count: their checkpoints, and a NaN."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import become_rank, last
from lightning import Callback
from plain_lightning import LitClassifier
from ranks import in_ranks
from test_plain_lightning import GOES_ON, fitted

from lockstep.callbacks.nonfinite import NonFiniteLoss
from lockstep.checkpointing import read_checkpoint
from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted
from lockstep.runs.results import collect_facts


class Raw(LitClassifier):
    """As code that was written for plain torch; two epochs have 28 batches."""

    def __init__(self, hidden: int = 16, lr: float = 0.05) -> None:
        super().__init__(hidden, lr)
        self.automatic_optimization = False
        self.own = torch.optim.SGD(self.parameters(), lr, momentum=0.9)

    def configure_optimizers(self) -> Any:
        return self.own

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.own.zero_grad()
        self.manual_backward(loss * self.factor(batch_idx))
        self.own.step()

    def factor(self, batch_idx: int) -> float:
        return 1.0


class NotANumber(Raw):
    def factor(self, batch_idx: int) -> float:
        return float("nan") if batch_idx == 3 else 1.0


class AskedToStop(Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.total.processed == 16 and trainer.global_rank == trainer.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)


RAW = ("model._target_=test_by_hand.Raw",)
ASKED = "+callbacks.asked={_target_: test_by_hand.AskedToStop}"


def stopped_and_resumed(rank: int, world_size: int, folder: Path) -> tuple[int, list[str]]:
    """Return the batches before the checkpoint that a SIGTERM has left, and the weights that a resumption has otherwise."""
    become_rank(rank, world_size)
    options = (*RAW, f"trainer.devices={world_size}", f"datamodule.batch_size={100 // world_size}")
    options += ("guards.preemption.every_n_steps=1", "guards.checkpoint.every_n_steps=null")
    whole = fitted(folder / "whole", *options).lightning_module.state_dict()
    STOP_SIGNALS.listen()
    with pytest.raises(Preempted):
        fitted(folder / "run", *options, ASKED)
    STOP_SIGNALS.stop_listening()
    path = folder / "run" / "checkpoints" / "last.ckpt"
    batches = last(folder / "run")["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"]
    again = fitted(folder / "run", *options, ckpt_path=path).lightning_module.state_dict()
    return batches, [name for name in whole if not torch.equal(again[name], whole[name])]


@pytest.mark.slow
@pytest.mark.filterwarnings(GOES_ON)
def test_raw_optimizers_are_saved_when_asked_to_stop_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    """They ask each other before every batch, and read the answer before the next."""
    assert in_ranks(2, partial(stopped_and_resumed, folder=tmp_path), tmp_path) == [(17, [])] * 2


def test_what_it_has_trained_is_saved_after_each_epoch_and_counted_in_batches(tmp_path: Path) -> None:
    trainer = fitted(tmp_path, *RAW, "guards.checkpoint.every_n_steps=null")
    folder = tmp_path / "checkpoints"
    assert read_checkpoint("the one before", folder / "previous.ckpt")["epoch"] == 1
    assert read_checkpoint("best", folder / "best.ckpt")["metrics"]["val_acc"] > 0.5
    assert (trainer.global_step, collect_facts(trainer)["steps"]) == (0, 28)


def test_a_loss_by_hand_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss, match=r"^at step 1 the loss is nan$"):
        fitted(tmp_path, "model._target_=test_by_hand.NotANumber")
    assert all(tensor.isfinite().all() for tensor in last(tmp_path)["state_dict"].values())  # of before it


class Unseen(NotANumber):
    """Neither returns its loss nor gives it to Lightning."""

    def manual_backward(self, loss: torch.Tensor, *_: Any, **__: Any) -> None:
        loss.backward()


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss, match=r"^up to step 14 weights have become NaN or infinite: net\."):
        fitted(tmp_path, "model._target_=test_by_hand.Unseen", "guards.checkpoint.every_n_steps=null")
    assert not (tmp_path / "checkpoints" / "last.ckpt").exists()
