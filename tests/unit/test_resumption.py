"""A run that is broken off at any step and continued ends where the unbroken one does, bit for bit."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from omegaconf import DictConfig

from lockstep.build import build
from lockstep.checkpointing import read_checkpoint
from lockstep.plan import Plan

Compose = Callable[..., DictConfig]
SMALL = (
    "trainer.accelerator=cpu",
    "trainer.max_epochs=3",
    "datamodule.batch_size=300",  # four batches an epoch
    "callbacks.checkpoint.every_n_steps=1",
    "callbacks.progress=null",
    "callbacks.pictures=null",
    "callbacks.watchdog=null",
    "trainer.enable_progress_bar=false",
    "logger=csv",
    "trainer.log_every_n_steps=1",
)


class KeepAll(Callback):
    """Copies every last.ckpt, under the number of batches before it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.batches = folder, 0

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._keep(trainer)
        self.batches += 1

    def _keep(self, trainer: Trainer) -> None:
        last = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
        if last.is_file():
            shutil.copy(last, self.folder / f"{self.batches}.ckpt")


def trained(
    compose: Compose, run_dir: Path, *overrides: str, extra: list[Callback] | None = None, ckpt_path: Path | None = None
) -> tuple[dict[str, Any], Trainer]:
    """The last checkpoint of a run, and its trainer."""
    cfg = compose(*SMALL, *overrides, run_dir=run_dir)
    run_dir.mkdir(exist_ok=True)
    datamodule, model, trainer = build(cfg, Plan.of(cfg))
    trainer.callbacks[0:0] = extra or []  # pyright: ignore[reportAttributeAccessIssue]
    trainer.fit(model, datamodule, ckpt_path=ckpt_path)
    return read_checkpoint("last", run_dir / "checkpoints" / "last.ckpt"), trainer


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """The places at which two checkpoints differ, in a bit or in kind."""
    if isinstance(a, dict) and isinstance(b, dict):
        missing = [f"{where}.{key}" for key in a.keys() ^ b.keys()]
        return missing + [found for key in a.keys() & b.keys() for found in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [found for i, (x, y) in enumerate(zip(a, b, strict=True)) for found in differences(x, y, f"{where}[{i}]")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    return [] if a == b else [f"{where}: {a} {b}"]


def logged(run: Path) -> list[dict[str, str]]:
    """What was logged, at which steps."""
    with (run / "csv" / "metrics.csv").open() as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.net.dropout=0.3", "datamodule.augment={crop: 1, flip: true}", "model/lr_scheduler=cosine"),
        ("trainer.accumulate_grad_batches=2", "datamodule.batch_size=150", "datamodule.drop_last=false"),
        ("trainer.val_check_interval=2", "model/lr_scheduler=plateau", "model.lr_scheduler.patience=0", "mode=min"),
        ("callbacks=ema", "callbacks.ema.decay=0.9", "callbacks.ema.update_starting_at_step=2", "model=cnn"),
        ("trainer.max_steps=12", "trainer.max_epochs=-1", "model/lr_scheduler=one_cycle", "trainer.check_val_every_n_epoch=2"),
        ("datamodule.num_workers=2", "datamodule.augment={crop: 1, flip: true}"),
    ],
    ids=["dropout", "accumulation", "plateau", "ema", "max_steps", "workers"],
)
def test_continuing_from_any_step_changes_nothing(overrides: tuple[str, ...], compose: Compose, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    run = tmp_path / "run"
    whole, _ = trained(compose, run, *overrides, extra=[KeepAll(kept)])
    log = logged(run)
    steps = sorted(kept.iterdir(), key=lambda path: int(path.stem))
    assert len(steps) >= 10
    for path in steps if "datamodule.num_workers=2" not in overrides else steps[1::4]:  # workers take seconds to start
        (run / "csv" / "metrics.csv").unlink()
        again, _ = trained(compose, run, *overrides, ckpt_path=path)
        assert not differences(whole, again), path.name
        assert logged(run)[-3:] == log[-3:]
