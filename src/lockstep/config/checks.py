"""Checks of a composed config, which are made before anything heavy is imported."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from lockstep.config.arguments import fits, shown, words
from lockstep.config.checkpoint_file import check_checkpoint
from lockstep.config.metrics import check_metric, monitored
from lockstep.config.modes import UNKNOWN
from lockstep.errors import config_error

GROUPS = ("model", "trainer", "trainer.checkpoint_io", "trainer.strategy")
GROUPS_OF_ENTRIES = ("guards", "callbacks", "logger")
OF_THE_WHOLE = ("experiment", "debug", "sweep")  # groups whose options set keys of the whole config
NEEDS_PACKAGE = "accepted is a file that begins with `# @package _global_`"  # of such an option
# The types of the root keys, and of the other keys that are read before their class is constructed.
ROOT: dict[str, Any] = {
    **dict.fromkeys(("overwrite", "fresh_processes"), bool),
    **dict.fromkeys(("max_processes_per_core", "base_batch_size", "seed", "max_restarts"), int),
    **dict.fromkeys(("init_from", "init_without", "fork", "mirror", "optimized_metric"), str | None),
    "name": str,
    "test": bool | Literal["auto"],
    "optimized_mode": Literal["max", "min"],
    "lr_scaling": Literal["none", "linear", "sqrt", "adam"],
}
_OF_THE_PLAN: dict[str, Any] = {
    "trainer.accelerator": Literal["auto", "cpu", "gpu", "cuda", "mps"],
    "trainer.devices": int | Literal["auto"] | Sequence[int],
    "trainer.num_nodes": int | Literal["auto"],
    "trainer.accumulate_grad_batches": int,
    **dict.fromkeys(("guards.preemption.deadline", "guards.watchdog.seconds_to_first_batch"), float | None),
    **dict.fromkeys(("trainer.max_epochs", "trainer.check_val_every_n_epoch"), int | None),
    **dict.fromkeys(("datamodule.batch_size", "datamodule.global_batch_size", "datamodule.num_workers"), int | None),
}
_AT_LEAST_ONE = ("max_processes_per_core", "base_batch_size", "trainer.num_nodes", "trainer.accumulate_grad_batches")
_AT_LEAST_ONE += ("datamodule.batch_size", "datamodule.global_batch_size")
# what the plan and the build read of the trainer, whichever it is
_OF_THE_TRAINER = ("accelerator", "devices", "num_nodes", "accumulate_grad_batches", "sync_batchnorm", "enable_progress_bar")


def check(cfg: DictConfig, chosen: Iterable[str] = ()) -> None:
    """Raises ConfigError for the first thing that is wrong in the composed config. `chosen`: the groups whose options Hydra
    has composed."""
    taken_out = {*ROOT, "model", "trainer", "datamodule"} - cfg.keys()  # by ~KEY
    for key in (key for key in OF_THE_WHOLE if OmegaConf.is_dict(OmegaConf.select(cfg, key))):
        raise config_error(key, f"{{{', '.join(map(str, cfg[key]))}}}", f"nothing reads what is under {key}; {NEEDS_PACKAGE}")
    if not taken_out:
        _check_groups(cfg, chosen)
        taken_out = {f"trainer.{name}" for name in _OF_THE_TRAINER if name not in cfg.trainer}
    for key in sorted(taken_out | OmegaConf.missing_keys(cfg)):
        raise config_error(key, "???", "a value is required")
    for key, metric in monitored(cfg):
        mode = "optimized_mode" if key == "optimized_metric" else key.replace(".monitor", ".mode")
        if OmegaConf.select(cfg, mode) == UNKNOWN:
            raise config_error(key, metric, f"the name does not say whether more of it is better; set {mode}=max or {mode}=min")
    check_types(cfg, ROOT | _OF_THE_PLAN)
    if not 0 <= cfg.seed < 2**32:
        raise config_error("seed", cfg.seed, "is outside numpy's range; use 0 to 4294967295")
    if ".." in cfg.name.split("/"):
        raise config_error("name", cfg.name, "leads out of logs/; use a name without ..")
    if (without := OmegaConf.select(cfg, "init_without")) is not None and cfg.init_from is None:
        raise config_error("init_without", without, "is of the checkpoint init_from, which is null; accepted then is null")
    for key, metric in monitored(cfg):
        check_metric(cfg, key, metric)
    if _has_checkpoint(cfg):
        return  # and goes on from that: what it began with may be gone
    if (path := OmegaConf.select(cfg, "init_from")) is not None:
        check_checkpoint("init_from", Path(path))


def check_types(cfg: DictConfig, types: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first key, of those that the config has, whose value is of another type, or below 1 where it is
    one of _AT_LEAST_ONE."""
    for key, annotation in types.items():
        value = OmegaConf.select(cfg, key)
        value = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        if not fits(value, annotation) and (value is not None or _has(cfg, key)):
            raise config_error(key, shown(value), f"accepted is {words(annotation)}")
        if key in _AT_LEAST_ONE and isinstance(value, int) and value < 1:
            raise config_error(key, value, "is less than 1; use at least 1")


def _has_checkpoint(cfg: DictConfig) -> bool:
    """Does this run go on from a checkpoint, of its own or of another run?"""
    if OmegaConf.select(cfg, "fork") is not None:
        return True
    return cfg.get("run_id") is not None and any(Path(cfg.run_dir).glob("checkpoints/*.ckpt"))


def _has(cfg: DictConfig, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(cfg, parent)
    return isinstance(node, DictConfig) and name in node


def _check_groups(cfg: DictConfig, chosen: Iterable[str]) -> None:
    """Raises ConfigError for text where a group of values is meant, as in `model.optimizer=adam`."""
    for key in _groups(cfg):
        if not isinstance(node := OmegaConf.select(cfg, key), DictConfig):
            raise config_error(key, shown(node), f"accepted is a group; override what is in it, {key}.NAME=VALUE")
    for key in (group.replace("/", ".") for group in chosen if "/" in group and not group.startswith("hydra/")):
        if _has(cfg, key) and not isinstance(node := OmegaConf.select(cfg, key), DictConfig):
            raise config_error(key, shown(node), f"a group of values; accepted is {key.replace('.', '/')}={shown(node)}")


def _groups(cfg: DictConfig) -> list[str]:
    """Returns the keys of what is built from a _target_: the parts of a run, its callbacks and the like."""
    entries = [f"{group}.{name}" for group in GROUPS_OF_ENTRIES for name in OmegaConf.select(cfg, group) or {}]
    return [*GROUPS, *(key for key in ("datamodule", *entries) if OmegaConf.select(cfg, key) is not None)]
