"""Checks of a composed config, which are made before anything heavy is imported."""

from collections.abc import Iterable, Mapping, Sequence
from inspect import formatannotation
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from lockstep.config.arguments import fits, shown
from lockstep.config.metrics import check_metrics
from lockstep.config.overrides import is_group
from lockstep.errors import config_error

OF_THE_WHOLE = ("experiment", "debug", "sweep")  # groups whose options set keys of the whole config
# The types of keys that are read before a class is constructed with them.
_TYPES: dict[str, Any] = {
    "seed": int,
    "lr_scaling": Literal["none", "linear", "sqrt"],
    "trainer.accelerator": Literal["auto", "cpu", "gpu", "cuda", "mps"],
    "trainer.devices": int | Literal["auto"] | Sequence[int],
    "trainer.num_nodes": int | Literal["auto"],
    "trainer.accumulate_grad_batches": int,
    **dict.fromkeys(("guards.preemption.deadline", "guards.watchdog.seconds_to_first_batch"), float | None),
    **dict.fromkeys(("trainer.max_epochs", "datamodule.batch_size", "datamodule.global_batch_size"), int | None),
}
_AT_LEAST_ONE = ("trainer.num_nodes", "trainer.accumulate_grad_batches", "datamodule.batch_size", "datamodule.global_batch_size")


def check(cfg: DictConfig, chosen: Iterable[str] = ()) -> None:
    """Raise ConfigError for the first thing that is wrong in the composed config. `chosen`: the groups whose options Hydra has
    composed."""
    for key in (key for key in OF_THE_WHOLE if OmegaConf.is_dict(OmegaConf.select(cfg, key))):
        accepted = f"nothing reads what is under {key}; use a file that begins with `# @package _global_`"
        raise config_error(key, f"{{{', '.join(map(str, cfg[key]))}}}", accepted)
    for group in ("model", "datamodule", "trainer", *chosen):
        node = OmegaConf.select(cfg, group.replace("/", "."))
        if isinstance(node, str) and is_group(group) and group not in OF_THE_WHOLE:
            raise config_error(group.replace("/", "."), node, f"a group of values; use {group}={node}")
    for key in sorted(OmegaConf.missing_keys(cfg)):
        raise config_error(key, "???", "a value is required")
    check_metrics(cfg)
    check_types(cfg, _TYPES)
    if not 0 <= cfg.seed < 2**32:
        raise config_error("seed", cfg.seed, "is outside numpy's range; use 0 to 4294967295")
    is_begun = cfg.get("run_id") is not None and any(Path(cfg.run_dir).glob("checkpoints/*.ckpt"))
    if cfg.init_from is not None and cfg.fork is None and not is_begun and not Path(cfg.init_from).is_file():
        accepted = f"no such file: {Path(cfg.init_from).absolute()}; use a checkpoint, RUN_DIR/checkpoints/best.ckpt for example"
        raise config_error("init_from", cfg.init_from, accepted)


def check_types(cfg: DictConfig, types: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first key, of those that the config has, whose value is of another type, or below 1 where it is
    one of _AT_LEAST_ONE."""
    for key, annotation in types.items():
        value = OmegaConf.select(cfg, key, default=types)
        value = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        if value is not types and not fits(value, annotation):
            raise config_error(key, shown(value), f"use a value of type {formatannotation(annotation)}")
        if key in _AT_LEAST_ONE and isinstance(value, int) and value < 1:
            raise config_error(key, value, "is less than 1; use at least 1")
