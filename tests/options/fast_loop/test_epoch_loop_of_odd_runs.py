"""What an odd run does under the shortened loop, each as under Lightning's own: a step without a batch or a loss, an optimizer
with a way of its own, a checkpoint as often as can be, a profile."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.loops.optimization.automatic import Closure
from lightning.pytorch.profilers import PassThroughProfiler, SimpleProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from lockstep.fast_loop.epoch_loop import EpochLoop, install_fast_loop

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*log_every_n_steps")
BOTH_LOOPS = pytest.mark.parametrize("is_short", [False, True], ids=["Lightning's", "ours"])


class Model(LightningModule):
    def __init__(self, optimizer: Any = SGD) -> None:
        super().__init__()
        self.net, self.make_optimizer = nn.Linear(2, 1), optimizer

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self.parameters(), lr=0.1)


class SkipsOdd(Model):
    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return None if batch_idx % 2 else super().training_step(batch, batch_idx)


class Seen(Callback):
    """The hooks around steps, and whether each was given a batch and an output."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.events.append(("start", batch_idx, batch is None))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.events.append(("step", [parameter.grad is None for parameter in pl_module.parameters()]))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        keys = None if outputs is None else sorted(outputs)
        self.events.append(("end", batch_idx, batch is None, keys, trainer.global_step, pl_module.net.weight.sum().item()))


def fit(is_short: bool, model: LightningModule, *, odd_are_none: bool = False, is_plain: bool = True, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    model.net.reset_parameters()  # pyright: ignore
    batches: Any = [None if odd_are_none and i % 2 else torch.full((2, 2), 1.0 + i) for i in range(4)]
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(**{"max_epochs": 1, "accelerator": "cpu", **quiet, **settings})
    if is_short:
        install_fast_loop(trainer)
    trainer.fit(model, DataLoader(batches, batch_size=None))
    loop = trainer.fit_loop.epoch_loop
    assert not is_short or (isinstance(loop, EpochLoop) and (loop._plain is not None) is is_plain)
    return trainer


@pytest.mark.parametrize(("model", "none"), [(Model, True), (SkipsOdd, False)], ids=["batches", "losses"])
def test_a_step_without_a_batch_or_a_loss_is_left_out(model: Any, none: bool) -> None:
    results = []
    for is_short in (False, True):
        seen = Seen()
        Closure.warning_cache.clear()
        with pytest.warns(UserWarning, match="yielded None" if none else "`training_step` returned `None`"):
            trainer = fit(is_short, model(), odd_are_none=none, callbacks=[seen])
        results.append((seen.events, trainer.fit_loop.epoch_loop.state_dict()))
    assert results[0][0] == results[1][0]
    assert repr(results[0][1]) == repr(results[1][1])


@BOTH_LOOPS
def test_several_processes_refuse_a_step_without_a_loss_in_lightning_s_words(is_short: bool) -> None:
    refusal = pytest.raises(RuntimeError, match="Skipping the `training_step` by returning None in distributed training")
    with (
        patch.object(SingleDeviceStrategy, "broadcast", lambda _, value: value),
        patch.object(Trainer, "world_size", 2),
        refusal,
    ):
        fit(is_short, SkipsOdd())


class CountsZeroGrad(SGD):
    """An optimizer that has its own; of another module, it steps in Lightning's way."""

    count = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.count += 1
        super().zero_grad(set_to_none)


@BOTH_LOOPS
def test_an_optimizer_s_own_zero_grad_is_called(is_short: bool) -> None:
    trainer = fit(is_short, Model(CountsZeroGrad), is_plain=False)
    assert trainer.optimizers[0].count == 4  # pyright: ignore[reportAttributeAccessIssue]


@BOTH_LOOPS
def test_a_zero_grad_that_was_replaced_is_called(is_short: bool) -> None:
    with patch("torch.optim.SGD.zero_grad") as zero_grad:
        fit(is_short, Model())
    assert zero_grad.call_count == 4

    class Wraps(Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.optimizers[0].zero_grad = zero_grad

    fit(is_short, Model(), callbacks=[Wraps()])
    assert zero_grad.call_count == 8


@BOTH_LOOPS
def test_zero_grad_is_called_once_a_step_whatever_is_accumulated(is_short: bool) -> None:
    with patch("torch.optim.SGD.zero_grad") as zero_grad:
        fit(is_short, Model(), max_epochs=2, callbacks=[GradientAccumulationScheduler({1: 2})], is_plain=False)
    assert zero_grad.call_count == 4 + 2


@BOTH_LOOPS
def test_hooks_before_a_step_of_the_optimizer_come_when_lightning_calls_them(is_short: bool) -> None:
    gradients = []

    class Hooks(Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.optimizers[0].register_step_pre_hook(lambda *_: gradients.append(pl_module.net.weight.grad))

    fit(is_short, Model(), max_epochs=1, callbacks=[Hooks()], is_plain=False)
    assert gradients[0] is None


@BOTH_LOOPS
@pytest.mark.parametrize(("interval", "count"), [(timedelta(0), 4), (timedelta(days=1), 0)])
def test_checkpoints_by_time_are_saved(is_short: bool, interval: timedelta, count: int, tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, filename="{step}", train_time_interval=interval, save_top_k=-1)
    fit(is_short, Model(), enable_checkpointing=True, callbacks=[saver])
    assert len(list(tmp_path.glob("*.ckpt"))) == count


@BOTH_LOOPS
def test_a_profile_has_lightning_s_names(is_short: bool) -> None:
    profiler = SimpleProfiler()
    fit(is_short, Model(), profiler=profiler, is_plain=False)
    assert len(profiler.recorded_durations["[_TrainingEpochLoop].train_dataloader_next"]) == 4
    assert not any("EpochLoop]" in name and "_Training" not in name for name in profiler.recorded_durations)
    assert isinstance(fit(is_short, Model()).profiler, PassThroughProfiler)  # pyright: ignore[reportAttributeAccessIssue]
