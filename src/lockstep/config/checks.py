"""Checks of a composed config, which are made before anything heavy is imported."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.arguments import shown
from lockstep.config.checkpoint_file import check_checkpoint
from lockstep.config.class_checks import rules_in
from lockstep.config.metrics import check_metric, monitored
from lockstep.config.overrides import nodes
from lockstep.config.rules import ROOT, Rule
from lockstep.errors import config_error

GROUPS = ("model", "trainer", "trainer.checkpoint_io", "trainer.strategy")
GROUPS_OF_ENTRIES = ("guards", "callbacks", "logger")
OF_THE_WHOLE = ("experiment", "debug", "sweep")  # groups whose options set keys of the whole config
NEEDS_PACKAGE = "accepted is a file that begins with `# @package _global_`"  # of such an option
_OF_LIGHTNING_CLI = {"class_path", "init_args", "dict_kwargs"}  # keys of an object in its files
# what the plan and the build read of the trainer, whichever it is
IN_EVERY_TRAINER = tuple(f"trainer.{name}" for name in ("accelerator", "devices", "num_nodes", "accumulate_grad_batches"))
IN_EVERY_TRAINER += tuple(f"trainer.{name}" for name in ("checkpoint_io", "strategy", "sync_batchnorm", "enable_progress_bar"))


def check(cfg: DictConfig, chosen: Iterable[str] = ()) -> None:
    """Raises ConfigError for the first thing that is wrong in the composed config. `chosen`: the groups whose options Hydra
    has composed."""
    _check_missing(cfg, (*ROOT, "model", "trainer", "datamodule"))
    for key in (key for key in OF_THE_WHOLE if OmegaConf.is_dict(OmegaConf.select(cfg, key))):
        raise config_error(key, f"{{{', '.join(map(str, cfg[key]))}}}", f"nothing reads what is under {key}; {NEEDS_PACKAGE}")
    _check_groups(cfg, chosen)
    _check_missing(cfg, IN_EVERY_TRAINER)
    for key in sorted(OmegaConf.missing_keys(cfg)):
        raise config_error(key, "???", "a value is required")
    for key, value in nodes(OmegaConf.to_container(cfg)):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise config_error(key, value, "accepted is an integer of 64 bits")
    check_rules(cfg, ROOT | dict(rules_in(cfg)))
    if (without := OmegaConf.select(cfg, "init_without")) is not None and cfg.init_from is None:
        raise config_error("init_without", without, "is of the checkpoint init_from, which is null; accepted then is null")
    for key, metric in monitored(cfg):
        check_metric(cfg, key, metric)
    _check_targets(cfg)
    if _has_checkpoint(cfg):
        return  # and goes on from that: what it began with may be gone
    if (path := OmegaConf.select(cfg, "init_from")) is not None:
        check_checkpoint("init_from", Path(path))


def check_rules(cfg: DictConfig, rules: Mapping[str, Rule]) -> None:
    """Raises ConfigError for the first key, of those that the config has, whose value its rule does not accept: one that has the
    value of another comes after that."""
    values = {key: value for key, value in nodes(OmegaConf.to_container(cfg)) if _is_plain(value)}
    there = [key for key in rules if key in values or _has(cfg, key)]
    for key in sorted(there, key=lambda key: key not in values and OmegaConf.is_interpolation(*_node_and_name(cfg, key))):
        if not rules[key].test(value := values[key] if key in values else OmegaConf.select(cfg, key)):
            raise config_error(key, shown(value), rules[key].words)


def _is_plain(value: object) -> bool:
    """Is it a number, null, or a text without an interpolation? Most values are, of which OmegaConf looks up each anew."""
    return isinstance(value, int | float | None) or (isinstance(value, str) and "${" not in value and value != "???")


def _has_checkpoint(cfg: DictConfig) -> bool:
    """Does this run go on from a checkpoint, of its own or of another run?"""
    if OmegaConf.select(cfg, "fork") is not None:
        return True
    return cfg.get("run_id") is not None and any(Path(cfg.run_dir).glob("checkpoints/*.ckpt"))


def _has(cfg: DictConfig, key: str) -> bool:
    node, name = _node_and_name(cfg, key)
    return isinstance(node, DictConfig) and name in node


def _node_and_name(cfg: DictConfig, key: str) -> tuple[Any, str]:
    parent, _, name = key.rpartition(".")
    return OmegaConf.select(cfg, parent), name


def _check_missing(cfg: DictConfig, needed: Iterable[str]) -> None:
    """Raises ConfigError for a needed key that was taken out by ~KEY."""
    for key in needed:
        if not _has(cfg, key):
            raise config_error(key, "???", "a value is required")


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


def _check_targets(cfg: DictConfig) -> None:
    for key, value in nodes(OmegaConf.to_container(cfg)):
        if isinstance(value, dict) and "class_path" in value and {*value} <= _OF_LIGHTNING_CLI:
            path, accepted = shown(value["class_path"]), "with what is in init_args beside it"
            raise config_error(f"{key}.class_path", path, f"is LightningCLI's; accepted is _target_: {path}, {accepted}")
    for key in _groups(cfg):
        if not isinstance(target := OmegaConf.select(cfg, f"{key}._target_"), str):
            raise config_error(f"{key}._target_", shown(target), "accepted is the full name of a class, lockstep.nets.CNN say")
