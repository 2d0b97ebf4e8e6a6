"""What a run that continues from a checkpoint can't change: the checkpoint's optimizer and schedule go on as they were."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.arguments import shown
from lockstep.config.plan import Plan, rate_key
from lockstep.errors import config_error

_GROUPS = ("optimizer", "lr_scheduler", "param_groups")  # of a Task's model group
_NOT_IN_THE_STATE = ("lr_scheduler.monitor",)  # it is taken from the config


def trained_with(plan: Plan) -> dict[str, Any]:
    """What each checkpoint of a run says of it, besides the model group that a Task's has. lr: as scaled for the batch."""
    return {"lr": plan.lr, "global_batch_size": plan.global_batch_size}


def has_own_checkpoint(cfg: DictConfig) -> bool:
    """Does cfg.ckpt_path lie in the run's own directory, so that it is the same run that goes on."""
    return cfg.ckpt_path is not None and Path(cfg.ckpt_path).is_relative_to(cfg.run_dir)


def check_continuation(cfg: DictConfig, plan: Plan, checkpoint: Mapping[str, Any]) -> None:
    """Raises ConfigError where cfg.ckpt_path was trained with another rate, optimizer, schedule or, in another run, batch.

    A run that is resumed may change its batch: see lockstep.runs.resume."""
    epoch, epochs = checkpoint.get("epoch", 0), cfg.trainer.max_epochs
    if 0 < (epochs or -1) < epoch:
        raise config_error("trainer.max_epochs", epochs, f"{cfg.ckpt_path} is of epoch {epoch}; accepted is as many, or -1")
    saved = (checkpoint.get("hyper_parameters") or {}).get("model")
    if isinstance(saved, Mapping) and "optimizer" in saved:
        _check_model(cfg, saved)
    before = checkpoint.get("callbacks", {}).get("SteppedRate", {}).get("trained_with", {})
    batch = before.get("global_batch_size", plan.global_batch_size)
    if batch != plan.global_batch_size and not has_own_checkpoint(cfg):
        _refuse(cfg, "datamodule.global_batch_size", plan.global_batch_size, batch)
    if (rate := before.get("lr", plan.lr)) != plan.lr:
        key = rate_key(cfg.model)
        _refuse(cfg, "lr_scaling" if key is None else f"model.{key}", plan.lr, rate)


def _check_model(cfg: DictConfig, saved: Mapping[str, Any]) -> None:
    configured: Any = OmegaConf.to_container(cfg.model, resolve=True)
    before, now = (_flat({name: model.get(name) or {} for name in _GROUPS}) for model in (saved, configured))
    for name in (name for name in {**now, **before} if name not in _NOT_IN_THE_STATE):
        if before.get(name) != now.get(name):
            _refuse(cfg, f"model.{name}", now.get(name), before.get(name))


def _refuse(cfg: DictConfig, key: str, value: Any, before: Any) -> None:
    words = f"ckpt_path={cfg.ckpt_path} was trained with {shown(before)}, and goes on with it; accepted is {shown(before)}"
    raise config_error(key, shown(value), f"{words}, or init_from instead of ckpt_path")


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return flat
