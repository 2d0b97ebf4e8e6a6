"""Checks of a resumed run against its checkpoint, whose optimizer and schedule go on as they were."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lockstep.config.plan import Plan, rate_key
from lockstep.errors import config_error


def check_length(cfg: DictConfig, epoch: int, checkpoint: Path) -> None:
    """Raises ConfigError where the checkpoint is of a later epoch than the last one."""
    epochs = cfg.trainer.max_epochs
    if 0 < (epochs or -1) < epoch:
        raise config_error("trainer.max_epochs", epochs, f"{checkpoint} is of epoch {epoch}; use {epoch} or more, or -1")


def check_rate(cfg: DictConfig, plan: Plan, content: Mapping[str, Any], checkpoint: Path) -> None:
    """Raise ConfigError where another global batch, by lr_scaling, has another rate than the checkpoint's optimizer."""
    rate = content.get("callbacks", {}).get("SteppedRate", {}).get("trained_with", {}).get("lr", plan.lr)
    if rate != plan.lr:
        key = rate_key(cfg.model)
        words = f"{checkpoint} was trained with {rate}, and goes on with it; use {rate}, or a new run, by fork={checkpoint}"
        raise config_error("lr_scaling" if key is None else f"model.{key}", plan.lr, words)
