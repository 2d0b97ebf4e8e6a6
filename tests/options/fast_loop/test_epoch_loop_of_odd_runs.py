"""Odd runs under the shortened loop, compared with Lightning's own: a step without a batch or a loss, an optimizer
with a way of its own, a checkpoint as often as can be."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy
from test_epoch_loop import Model, Stateless, assert_as_lightning_s, train
from torch.utils.data import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore")
BOTH_LOOPS = pytest.mark.parametrize("is_short", [False, True], ids=["Lightning's", "ours"])
STEPS = 18  # three epochs of six batches


class SkipsOdd(Stateless):
    def training_step(self, batch: Any, batch_idx: int) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None if batch_idx % 2 else super().training_step(batch)


def odd_are_none() -> DataLoader[Any]:
    batches: Any = [None if i % 2 else (torch.full((2, 3), 1.0 + i), torch.ones(2, 1)) for i in range(6)]
    return DataLoader(batches, batch_size=None)


@pytest.mark.parametrize(
    ("model", "data", "warning"),
    [(Stateless, odd_are_none(), "yielded None"), (SkipsOdd, None, "`training_step` returned `None`")],
    ids=["batches", "losses"],
)
def test_a_step_without_a_batch_or_a_loss_is_left_out(model: Any, data: Any, warning: str, tmp_path: Path) -> None:
    seen = assert_as_lightning_s(tmp_path, model, data=data)
    assert any(warning in said for said in seen["warnings"])


@BOTH_LOOPS
def test_several_processes_refuse_a_step_without_a_loss_in_lightning_s_words(is_short: bool, tmp_path: Path) -> None:
    several = patch.object(SingleDeviceStrategy, "broadcast", lambda _, value: value), patch.object(Trainer, "world_size", 2)
    refusal = pytest.raises(RuntimeError, match="Skipping the `training_step` by returning None in distributed training")
    with several[0], several[1], refusal:
        train(tmp_path, is_short, SkipsOdd)


class WrappedZeroGrad(Model):
    def configure_optimizers(self) -> Any:
        configured = super().configure_optimizers()
        zero_grad = configured["optimizer"].zero_grad
        configured["optimizer"].zero_grad = lambda *given: self.events.append("zero_grad") or zero_grad(*given)
        return configured


def test_zero_grad_is_called_once_a_step_by_each_loop(tmp_path: Path) -> None:
    seen = assert_as_lightning_s(tmp_path, WrappedZeroGrad)
    assert seen["model"].count("zero_grad") == STEPS


class HookBeforeStep(Model):
    def configure_optimizers(self) -> Any:
        configured = super().configure_optimizers()
        configured["optimizer"].register_step_pre_hook(lambda *_: self.events.append(self.net[0].weight.grad))
        return configured


def test_hooks_before_a_step_of_the_optimizer_come_when_lightning_calls_them(tmp_path: Path) -> None:
    seen = assert_as_lightning_s(tmp_path, HookBeforeStep, is_plain=False)
    assert seen["model"][0] is None  # before the backward pass, which is in the optimizer's closure


@BOTH_LOOPS
@pytest.mark.parametrize(("interval", "count"), [(timedelta(0), STEPS), (timedelta(days=1), 0)])
def test_checkpoints_by_time_are_saved(is_short: bool, interval: timedelta, count: int, tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path / "timed", filename="{step}", train_time_interval=interval, save_top_k=-1)
    train(tmp_path, is_short, Stateless, callbacks=[saver])
    assert len(list((tmp_path / "timed").glob("*.ckpt"))) == count
