"""Checks of a composed config, which are made before anything heavy is imported."""

import functools
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from inspect import formatannotation
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from lockstep.config.arguments import fits, shown
from lockstep.config.metrics import UNKNOWN, check_metric, monitored
from lockstep.config.overrides import is_group
from lockstep.errors import config_error

_GROUPS = ("model", "trainer", "trainer.checkpoint_io", "trainer.strategy")
OF_THE_WHOLE = ("experiment", "debug", "sweep")  # groups whose options set keys of the whole config
# The types of the root keys, and of the other keys that are read before their class is constructed.
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("overwrite", "fresh_processes"), bool),
    **dict.fromkeys(("max_processes_per_core", "base_batch_size", "seed", "max_restarts"), int),
    **dict.fromkeys(("init_from", "init_without", "fork", "mirror", "optimized_metric"), str | None),
    "name": str,
    "test": bool | Literal["auto"],
    "optimized_mode": Literal["max", "min"],
    "lr_scaling": Literal["none", "linear", "sqrt"],
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


def check(cfg: DictConfig, chosen: Iterable[str] = ()) -> None:
    """Raise ConfigError for the first thing that is wrong in the composed config. `chosen`: the groups whose options Hydra has
    composed."""
    for key in (key for key in OF_THE_WHOLE if OmegaConf.is_dict(OmegaConf.select(cfg, key))):
        accepted = f"nothing reads what is under {key}; use a file that begins with `# @package _global_`"
        raise config_error(key, f"{{{', '.join(map(str, cfg[key]))}}}", accepted)
    _check_groups(cfg, [group.replace("/", ".") for group in chosen if "/" in group and not group.startswith("hydra/")])
    for key in sorted(OmegaConf.missing_keys(cfg)):
        raise config_error(key, "???", "a value is required")
    for key, metric in monitored(cfg):
        mode = "optimized_mode" if key == "optimized_metric" else key.replace(".monitor", ".mode")
        if OmegaConf.select(cfg, mode) == UNKNOWN:
            raise config_error(key, metric, f"the name does not say whether more of it is better; set {mode}=max or {mode}=min")
    check_types(cfg, _TYPES)
    if not 0 <= cfg.seed < 2**32:
        raise config_error("seed", cfg.seed, "is outside numpy's range; use 0 to 4294967295")
    for key, metric in monitored(cfg):
        check_metric(cfg, key, metric)
    goes_on = cfg.get("run_id") is not None and any(Path(cfg.run_dir).glob("checkpoints/*.ckpt"))
    if cfg.init_from is not None and cfg.fork is None and not goes_on:  # what it began with may be gone
        check_checkpoint("init_from", Path(cfg.init_from))


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


def _check_groups(cfg: DictConfig, inner: list[str]) -> None:
    """Raise ConfigError for text where a group of values is meant, as in `model.optimizer=adam`. `inner`: groups in others."""
    for key in (*_GROUPS, "datamodule", *inner):
        node, option = OmegaConf.select(cfg, key), key.replace(".", "/")
        if not isinstance(node, DictConfig) and (node is not None or key in _GROUPS):
            accepted = f"{option}={shown(node)}" if node is not None and is_group(option) else f"{key}.NAME=VALUE"
            raise config_error(key, shown(node), f"a group of values; use {accepted}")


def check_checkpoint(key: str, path: Path) -> None:
    """Raise ConfigError unless a checkpoint is there and is a whole zip archive, which is what torch.save writes."""
    if not path.is_file():
        accepted = f"no such file: {path.absolute()}; use a checkpoint, RUN_DIR/checkpoints/best.ckpt for example"
        raise config_error(key, path, accepted)
    try:
        stat = path.stat()
        damaged = _first_damaged(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    except Exception as error:  # zipfile raises what it meets: BadZipFile, zlib.error, RuntimeError, ...
        raise config_error(key, path, f"not a readable checkpoint ({error})") from error
    if damaged is not None:
        raise config_error(key, path, f"the checkpoint is corrupt (at {damaged})")


@functools.cache
def _first_damaged(path: Path, *_: int) -> str | None:
    """Return the first member whose checksum is wrong. Read the whole file, so once a process: the same number, time and size
    are the same file."""
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()
