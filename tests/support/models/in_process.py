"""Runs inside the test's own process, which cost a fraction of a command line: composed, built and trained as train.py does."""

import copy
import csv
import functools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from lightning import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf
from torch.optim import Optimizer

from lockstep.build import build
from lockstep.checkpointing import read_checkpoint
from lockstep.config.plan import Plan
from lockstep.launchers.environment import PARENT_PID, register_resolvers, this_rank
from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted
from lockstep.places import CONF
from lockstep.plain_lightning.loaders import SharedSampler
from lockstep.runs.validation import derive

torch.set_num_threads(1)  # of these small nets; several tests share the cores

SMALL = ("trainer.accelerator=cpu", "trainer.max_epochs=3", "datamodule.batch_size=300")  # four batches an epoch
SMALL += ("guards.checkpoint.every_n_steps=1", "++callbacks.progress=null", "++callbacks.pictures=null", "guards.watchdog=null")
SMALL += ("trainer.enable_progress_bar=false", "logger=csv", "trainer.log_every_n_steps=1")
BARE = ("trainer.accelerator=cpu", "trainer.enable_progress_bar=false", "logger.tensorboard=null", "~callbacks")
BARE += tuple(f"++guards.{name}=null" for name in ("preemption", "nonfinite", "watchdog", "randomness", "equivalence"))


BELOW_A_GROUP = re.compile(r"(\+\+?|~)?(?!hydra\.)\w+\.[\w.]+(=|$)")
PLAIN = {"model": "mlp", "model/lr_scheduler": "constant", "datamodule.augment": "null"}


def plain(*overrides: str) -> list[str]:
    """With the smallest of nets, a constant rate and data as it is, unless they say otherwise."""
    return [f"{key}={value}" for key, value in PLAIN.items() if not any(o.startswith(f"{key}=") for o in overrides)] + [
        *overrides
    ]


def composed(*overrides: str, run_dir: Path) -> DictConfig:
    cfg = composed_at_once(*overrides)
    cfg.run_dir = str(run_dir)
    return cfg


def composed_at_once(*overrides: str, config_name: str = "train") -> DictConfig:
    """As by lockstep.runs.composition, which takes most of a short training's time. Options of groups are composed once for all
    that choose the same; Hydra then sets the keys below them, as it does when it has composed."""
    values = [override for override in overrides if BELOW_A_GROUP.match(override)]
    cfg = copy.deepcopy(_options(config_name, *(override for override in overrides if override not in values)))
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(values), cfg)
    derive(cfg, overrides)
    return cfg


@functools.lru_cache(maxsize=64)
def _options(config_name: str, *overrides: str) -> DictConfig:
    register_resolvers()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return hydra.compose(config_name, overrides=[f"name={config_name}", "run_dir=.", *overrides])


def prepared(
    run_dir: Path,
    *overrides: str,
    extra: list[Callback] | None = None,
    base: tuple[str, ...] = SMALL,
    ckpt_path: Path | None = None,
) -> tuple[Any, Any, Any]:
    """A datamodule, a model and a trainer, whose callbacks are those of the config after the `extra` ones."""
    has_total = any(override.startswith("datamodule.global_batch_size=") for override in overrides)
    kept = [override for override in base if not (has_total and override.startswith("datamodule.batch_size="))]
    cfg = composed(*plain(*kept, *overrides), run_dir=run_dir)
    run_dir.mkdir(exist_ok=True)
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg), ckpt_path)
    trainer.callbacks[0:0] = extra or []  # pyright: ignore[reportAttributeAccessIssue]
    return datamodule, model, trainer


def save_config(run_dir: Path, *overrides: str) -> None:
    """Write the config of a run, as train.py does."""
    (run_dir / ".hydra").mkdir()
    OmegaConf.save(composed(*plain(*overrides), run_dir=run_dir), run_dir / ".hydra" / "config.yaml")


def trained(
    run_dir: Path, *overrides: str, extra: list[Callback] | None = None, ckpt_path: Path | None = None
) -> tuple[dict[str, Any], Trainer]:
    """The last checkpoint of a run, and its trainer."""
    datamodule, model, trainer = prepared(run_dir, *overrides, extra=extra, ckpt_path=ckpt_path)
    trainer.fit(model, datamodule, ckpt_path=ckpt_path)
    return last(run_dir), trainer


def preempted(run_dir: Path, *overrides: str, extra: list[Callback], ckpt_path: Path | None = None) -> int:
    """Return the signal by which a run is preempted, 0 if it is not."""
    STOP_SIGNALS.listen()
    try:
        trained(run_dir, *overrides, extra=extra, ckpt_path=ckpt_path)
    except Preempted as error:
        return error.number
    finally:
        STOP_SIGNALS.stop_listening()
    return 0


def last(run_dir: Path) -> dict[str, Any]:
    return read_checkpoint("last", run_dir / "checkpoints" / "last.ckpt")


def logged(run: Path) -> dict[tuple[int, str], str]:
    """Return the logged values by step and name, without the speed. Fail if a point was logged twice."""
    result: dict[tuple[int, str], str] = {}
    with (run / "csv" / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name not in ("step", "epoch") and not name.startswith(("throughput/", "time/")):
                    assert (int(row["step"]), name) not in result, f"{name} at step {row['step']} twice"
                    result[int(row["step"]), name] = value
    return result


class Rates(Callback):
    """The learning rate of each step, when the optimizer is about to make it."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


class KeepAll(Callback):
    """Copies every last.ckpt, under the number of batches before it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.batches = folder, 0

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        last = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
        if trainer.is_global_zero and last.is_file():
            shutil.copy(last, self.folder / f"{self.batches}.ckpt")
        self.batches += 1


def become_rank(rank: int, world_size: int) -> None:
    """For a process of tests/ranks.py, whose group exists already: what a rank finds in its environment."""
    os.environ |= {PARENT_PID: "-1", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    this_rank.cache_clear()


def without_batches(monkeypatch: pytest.MonkeyPatch, *left_out: int) -> None:
    """Takes batches out of every epoch."""
    draws, length = SharedSampler.__iter__, SharedSampler.__len__

    def some(self: SharedSampler) -> Iterator[Any]:
        return (draw for number, draw in enumerate(draws(self)) if not self.training or number not in left_out)

    monkeypatch.setattr(SharedSampler, "__iter__", some)
    monkeypatch.setattr(SharedSampler, "__len__", lambda self: length(self) - self.training * len(left_out))
