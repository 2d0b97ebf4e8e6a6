"""Checks of a resumed run against its checkpoint, whose optimizer and schedule go on as they were."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.arguments import shown
from lockstep.config.overrides import flat
from lockstep.config.plan import Plan, rate_key
from lockstep.errors import config_error

_GROUPS = ("optimizer", "lr_scheduler", "param_groups")  # of a Task's model group
_NOT_IN_THE_STATE = ("lr_scheduler.monitor",)  # it is taken from the config


def check_length(cfg: DictConfig, epoch: int, checkpoint: Path) -> None:
    """Raises ConfigError where the checkpoint is of a later epoch than the last one."""
    epochs = cfg.trainer.max_epochs
    if 0 < (epochs or -1) < epoch:
        raise config_error("trainer.max_epochs", epochs, f"{checkpoint} is of epoch {epoch}; use {epoch} or more, or -1")


def check_continuation(cfg: DictConfig, plan: Plan, content: Mapping[str, Any], checkpoint: Path) -> None:
    """Raises ConfigError where a run that is resumed was trained with another rate, optimizer or schedule. It may change its
    batch: see lockstep.runs.resume."""
    saved = (content.get("hyper_parameters") or {}).get("model")
    if isinstance(saved, Mapping) and "optimizer" in saved:
        _check_model(cfg, saved, checkpoint)
    rate = content.get("callbacks", {}).get("SteppedRate", {}).get("trained_with", {}).get("lr", plan.lr)
    if rate != plan.lr:
        key = rate_key(cfg.model)
        _refuse("lr_scaling" if key is None else f"model.{key}", plan.lr, rate, checkpoint)


def _check_model(cfg: DictConfig, saved: Mapping[str, Any], checkpoint: Path) -> None:
    configured: Any = OmegaConf.to_container(cfg.model, resolve=True)
    both = (flat({name: model.get(name) or {} for name in _GROUPS}) for model in (saved, configured))
    before, now = ({name: value for name, value in model.items() if value != {}} for model in both)
    for name in (name for name in {**now, **before} if name not in _NOT_IN_THE_STATE):
        if before.get(name) != now.get(name):
            _refuse(f"model.{name}", now.get(name), before.get(name), checkpoint)


def _refuse(key: str, value: Any, before: Any, checkpoint: Path) -> None:
    words = f"{checkpoint} was trained with {shown(before)}, and goes on with it; use {shown(before)}"
    raise config_error(key, shown(value), f"{words}, or a new run, by fork={checkpoint}")
