"""The shortened loop beside Lightning's own: the same hooks in the same order, the same logs, the same checkpoints."""

import csv
import inspect
import warnings
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import trained
from lightning import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loops.optimization.automatic import Closure
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lockstep.fast_loop.epoch_loop import EpochLoop, NoProfiler, install_fast_loop

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about loaders and loggers

HOOKS = sorted(name for name, member in inspect.getmembers(Callback, inspect.isfunction) if name.startswith("on_"))
STATEFUL = ("on_save_checkpoint", "on_load_checkpoint")


class Recorder(Callback):
    """Every hook of a callback, with what is known of the trainer when it is called."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events


def _recording(hook: str) -> Any:
    def record(self: Recorder, trainer: Any, pl_module: Any, *arguments: Any, **named: Any) -> None:
        loop = trainer.fit_loop.epoch_loop
        seen = [_seen(argument) for argument in (*arguments, *named.values()) if hook not in STATEFUL]
        progress = [(p.ready, p.completed) for p in (loop.batch_progress.current, loop.batch_progress.total)]
        self.events.append((hook, seen, trainer.global_step, trainer.current_epoch, progress, pl_module._current_fx_name))

    return record


def _seen(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.tolist()
    if isinstance(argument, dict):
        return {key: _seen(value) for key, value in argument.items()}
    if isinstance(argument, list | tuple):
        return [_seen(part) for part in argument]
    return argument if isinstance(argument, int | float | str | None) else type(argument).__name__


for _hook in HOOKS:
    setattr(Recorder, _hook, _recording(_hook))


class Model(LightningModule):
    """Logs in its steps and hooks, by step and by epoch; returns more than its loss."""

    def __init__(self, interval: str = "step", frequency: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.schedule = {"interval": interval, "frequency": frequency}
        self.events: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("train/loss", loss, on_step=True, on_epoch=True)
        return {"loss": loss, "batch": batch_idx}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", (self.net(batch[0]) - batch[1]).square().mean())

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("last", outputs["loss"])
        self.events.append(("model", batch_idx, self.global_step))

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log("norm", sum(p.grad.norm() for p in self.parameters() if p.grad is not None))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, **self.schedule}}


class Stateless(Model):
    """Logs nothing by step: what is left of Lightning's results is then empty."""

    def training_step(self, batch: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (self.net(batch[0]) - batch[1]).square().mean()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None: ...

    def on_before_optimizer_step(self, optimizer: Any) -> None: ...


class Stops(Callback):
    """Asks training to end in mid-epoch."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.should_stop = trainer.global_step >= 4


def _data(samples: int, batch_size: int) -> DataLoader[Any]:
    inputs = torch.randn(samples, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=batch_size)


CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "validation within epochs": {"val_check_interval": 2},
    "validation across epochs": {"val_check_interval": 4, "check_val_every_n_epoch": None},
    "fewer validations": {"check_val_every_n_epoch": 2},
    "ends within an epoch": {"max_steps": 8},
    "fewer batches": {"limit_train_batches": 3},
    "clipped": {"gradient_clip_val": 0.1},
    "clipped by value": {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
    "float64": {"precision": "64-true"},
    "bfloat16": {"precision": "bf16-mixed"},
    "no validation": {"limit_val_batches": 0},
    "stopped": {"callbacks": [Stops()]},
}


def train(
    folder: Path, is_short: bool, model: Any, ckpt_path: Any = None, data: Any = None, **settings: Any
) -> tuple[Trainer, dict[str, Any]]:
    """Return the trainer, and all that can be seen of the training."""
    folder.mkdir(exist_ok=True)
    seed_everything(0, verbose=False)
    model, events, callbacks = model(), [], settings.pop("callbacks", [])
    saver = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=3)
    trainer = Trainer(
        **{"max_epochs": 3, "log_every_n_steps": 2, **settings},
        accelerator="cpu",
        logger=CSVLogger(folder, name="", version=""),
        callbacks=[Recorder(events), saver, *callbacks],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if is_short:
        install_fast_loop(trainer)
    Closure.warning_cache.clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(model, data or _data(22, 4), _data(8, 4), ckpt_path=ckpt_path)
    table = folder / "metrics.csv"  # not there where nothing is logged
    return trainer, {
        "events": events,
        "model": model.events,
        "logs": list(csv.DictReader(table.read_text().splitlines())) if table.is_file() else [],
        "weights": {name: value.tolist() for name, value in model.state_dict().items()},
        "checkpoints": {path.name: _read_loops(path) for path in sorted(folder.glob("*.ckpt"))},
        "warnings": {str(one.message) for one in said if "None" in str(one.message)},
        "metrics": (saver.best_model_score, trainer.callback_metrics, trainer.global_step),
    }


def _read_loops(path: Path) -> dict[str, Any]:
    """Return what Lightning's loops have saved in a checkpoint, and the optimizer's state."""
    checkpoint = torch.load(path, weights_only=True)
    return {name: _seen(checkpoint[name]) for name in ("loops", "optimizer_states", "lr_schedulers", "epoch")}


def assert_as_lightning_s(folder: Path, model: Any, is_plain: bool = True, **settings: Any) -> dict[str, Any]:
    """Compare what is seen of a training under each of the loops, and return it."""
    _, own = train(folder / "own", False, model, **settings)
    trainer, short = train(folder / "short", True, model, **settings)
    loop = trainer.fit_loop.epoch_loop
    assert isinstance(loop, EpochLoop)
    assert (loop._plain is not None) is is_plain
    for part in own:
        assert repr(short[part]) == repr(own[part]), part
    return short


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [Model, Stateless])
def test_it_does_what_lightning_s_own_loop_does(case: str, kind: type[Model], tmp_path: Path) -> None:
    assert_as_lightning_s(tmp_path, kind, **CASES[case])


@pytest.mark.parametrize(("interval", "frequency"), [("step", 3), ("epoch", 1)])
def test_schedules_step_when_lightning_s_would(interval: str, frequency: int, tmp_path: Path) -> None:
    assert_as_lightning_s(tmp_path, partial(Model, interval, frequency))


@pytest.mark.parametrize("step", [3, 6, 9])
def test_it_continues_as_lightning_s_own_loop_does(step: int, tmp_path: Path) -> None:
    train(tmp_path / "first", False, Model)
    assert_as_lightning_s(tmp_path, Model, ckpt_path=tmp_path / "first" / f"step={step}.ckpt")


class OwnStep(Model):
    def optimizer_step(self, *arguments: Any, **named: Any) -> None:
        super().optimizer_step(*arguments, **named)


class OwnTransfer(Model):
    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return super().transfer_batch_to_device(batch, device, dataloader_idx)


class Manual(Model):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.net(batch[0]).square().mean())
        optimizer.step()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None: ...


class WrappedBackward(Model):
    """On the object, as a spy does it: Lightning's is_overridden takes it for LightningModule's own."""

    def __init__(self) -> None:
        super().__init__()
        backward: Any = self.backward
        self.backward = wraps(backward)(lambda loss, *arguments: backward(loss, *arguments))


class LineSearch(Model):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), max_iter=2)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (OwnStep, {}),
        (OwnTransfer, {}),
        (Manual, {}),
        (WrappedBackward, {}),
        (LineSearch, {}),
        (Model, {"accumulate_grad_batches": 2}),
        (Model, {"profiler": "simple"}),
    ],
)
def test_what_asks_for_more_goes_lightning_s_way(model: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    trainer, _ = train(tmp_path, True, model, **settings)
    assert trainer.fit_loop.epoch_loop._plain is None
    assert isinstance(trainer.profiler, NoProfiler) is ("profiler" not in settings)


class WrappedHook(Model):
    """On the object, too."""

    def __init__(self) -> None:
        super().__init__()
        self.on_before_zero_grad = wraps(self.on_before_zero_grad)(lambda optimizer: self.events.append(optimizer))


def test_a_hook_that_is_wrapped_on_the_object_is_called(tmp_path: Path) -> None:
    trainer, seen = train(tmp_path, True, WrappedHook)
    assert trainer.fit_loop.epoch_loop._plain is not None
    assert sum(isinstance(event, torch.optim.Optimizer) for event in seen["model"]) == trainer.global_step


def test_a_run_without_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    options = ("trainer.max_epochs=2", "model.net.dropout=0.2", "datamodule.augment={crop: 1, flip: true}")
    short, trainer = trained(tmp_path / "short", *options)
    stock, own = trained(tmp_path / "stock", *options, "guards.fast_loop=null")
    assert [isinstance(one.fit_loop.epoch_loop, EpochLoop) for one in (trainer, own)] == [True, False]
    assert trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor() is None  # which would wait for the device
    assert not differences(short | {"callbacks": None}, stock | {"callbacks": None})  # these say where the best checkpoint is
