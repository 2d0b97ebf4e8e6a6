"""What can be wrong in a composed config, checked before anything heavy is imported."""

import functools
import re
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.arguments import shown
from lockstep.config.plan import AUTO
from lockstep.config.rules import RULES, Rule
from lockstep.config.urls import check_is_here
from lockstep.errors import config_error

STAGES = ("train", "val", "test")
VALIDATION = ("validation", "valid", "val", "dev")  # as folders and files of that split are called
GROUPS = ("model", "trainer", "trainer.checkpoint_io", "trainer.strategy")
GROUPS_OR_NULL = ("datamodule", "datamodule.curriculum")
GROUPS_OF_ENTRIES = ("guards", "callbacks", "logger")
# what the plan and the build read of the trainer, whichever it is
IN_EVERY_TRAINER = tuple(f"trainer.{name}" for name in ("accelerator", "devices", "num_nodes", "accumulate_grad_batches"))
IN_EVERY_TRAINER += tuple(f"trainer.{name}" for name in ("checkpoint_io", "strategy", "sync_batchnorm", "enable_progress_bar"))


def check(cfg: DictConfig, chosen: Iterable[str] = ()) -> None:
    """Raises ConfigError for the first thing that is wrong in the composed config. `chosen`: the groups whose options Hydra
    has composed."""
    _check_missing(cfg, [key for key in (*RULES, *GROUPS, *GROUPS_OR_NULL) if "." not in key])
    _check_groups(cfg, chosen)
    _check_missing(cfg, IN_EVERY_TRAINER)
    for key in sorted(OmegaConf.missing_keys(cfg)):
        raise config_error(key, "???", "a value is required")
    for key, value in _integers(OmegaConf.to_container(cfg)):
        if abs(value) >= 2**63:
            raise config_error(key, value, "accepted is an integer of 64 bits")
    check_rules(cfg, RULES)
    for key, value, accepted in _conflicts(cfg):
        raise config_error(key, value, accepted)
    for key, metric in monitored(cfg):
        check_metric(cfg, key, metric)
    _check_targets(cfg)
    _check_data_dir(cfg)
    if _has_checkpoint(cfg):
        return  # and goes on from that: what it began with may be gone
    for key in ("ckpt_path", "init_from"):
        if (path := OmegaConf.select(cfg, key)) is not None:
            check_checkpoint(key, Path(path))


def _integers(node: Any, above: str = "") -> Iterator[tuple[str, int]]:
    """All that there are in plain containers, with their keys."""
    for name, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, dict | list):
            yield from _integers(value, f"{above}{name}.")
        elif isinstance(value, int):
            yield f"{above}{name}", value


def check_rules(cfg: DictConfig, rules: Mapping[str, Rule]) -> None:
    """Raises ConfigError for the first key, of those that the config has, whose value its rule does not accept."""
    for key, accepts in rules.items():
        if _has(cfg, key) and not accepts.test(value := OmegaConf.select(cfg, key)):
            raise config_error(key, shown(value), accepts.words)


def _has_checkpoint(cfg: DictConfig) -> bool:
    """Is this run continued, from a checkpoint of its own?"""
    run_dir = OmegaConf.select(cfg, "resume")
    return run_dir is not None and any(Path(run_dir).glob("checkpoints/*.ckpt"))


def _has(cfg: DictConfig, key: str) -> bool:
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else cfg
    return isinstance(node, DictConfig) and leaf in node


def _check_missing(cfg: DictConfig, needed: Iterable[str]) -> None:
    """Of what was taken out by ~KEY and can't be done without."""
    for key in needed:
        if not _has(cfg, key):
            raise config_error(key, "???", "a value is required")


def _check_groups(cfg: DictConfig, chosen: Iterable[str]) -> None:
    """`model.optimizer=adam` is text where a group of values is meant."""
    for key in _groups(cfg):
        if not isinstance(node := OmegaConf.select(cfg, key), DictConfig):
            raise config_error(key, shown(node), f"accepted is a group; override what is in it, {key}.NAME=VALUE")
    for key in (group.replace("/", ".") for group in chosen if "/" in group and not group.startswith("hydra/")):
        if _has(cfg, key) and not isinstance(node := OmegaConf.select(cfg, key), DictConfig):
            raise config_error(key, shown(node), f"a group of values; accepted is {key.replace('.', '/')}={shown(node)}")


def _groups(cfg: DictConfig) -> list[str]:
    """What is built from a _target_: the parts of a run, and what there is of callbacks and the like."""
    entries = [f"{group}.{name}" for group in GROUPS_OF_ENTRIES for name in OmegaConf.select(cfg, group) or {}]
    return [*GROUPS, *(key for key in (*GROUPS_OR_NULL, *entries) if OmegaConf.select(cfg, key) is not None)]


def _check_targets(cfg: DictConfig) -> None:
    for key in _groups(cfg):
        if not isinstance(target := OmegaConf.select(cfg, f"{key}._target_"), str):
            raise config_error(f"{key}._target_", shown(target), "accepted is the full name of a class, lockstep.nets.CNN say")


def _conflicts(cfg: DictConfig) -> Iterator[tuple[str, object, str]]:
    """What does not go together: a key, its value, and what would be accepted."""

    def of(key: str) -> Any:
        return OmegaConf.select(cfg, key)

    names = [key.removeprefix("datamodule.augment.") for key in RULES if key.startswith("datamodule.augment.")]
    for name, value in (of("datamodule.augment") or {}).items():
        if name not in names:
            yield f"datamodule.augment.{name}", shown(value), f"no such key; accepted are {', '.join(names)}"
    if of("datamodule.batch_size") == AUTO and (given := of("datamodule.global_batch_size")) is not None:
        yield "datamodule.global_batch_size", given, "says what datamodule.batch_size=auto is to find; accepted is one of the two"
    if of("datamodule.persistent_workers") and cfg.datamodule.num_workers == 0:
        yield "datamodule.persistent_workers", "true", "needs datamodule.num_workers of at least 1"
    yield from _conflicts_of_communication(of)
    interval = of("trainer.val_check_interval")
    if _has(cfg, "trainer.check_val_every_n_epoch") and of("trainer.check_val_every_n_epoch") is None and type(interval) is float:
        accepted = f"needs trainer.val_check_interval as a number of batches, which is {interval:g}; accepted is an integer"
        yield "trainer.check_val_every_n_epoch", "null", accepted
    folds, fold = of("datamodule.folds"), of("datamodule.fold")
    if folds is None and fold:
        yield "datamodule.fold", fold, "needs datamodule.folds; accepted without it is 0"
    if folds is not None and fold >= folds:
        yield "datamodule.fold", fold, f"accepted is 0 to {folds - 1}, for datamodule.folds={folds}"
    if (without := of("init_without")) is not None and of("init_from") is None:
        yield "init_without", without, "is of the checkpoint init_from, which is null; accepted then is null"


def _conflicts_of_communication(of: Callable[[str], Any]) -> Iterator[tuple[str, object, str]]:
    """What several processes can't do with steps of their own, or with what is carried from a scaled gradient to the next."""
    target = str(of("trainer.strategy.communication._target_")).rpartition(".")[2]
    if target in ("PowerSGD", "LocalSGD") and (precision := of("trainer.precision")) in (16, "16-mixed"):
        accepted = f"has a scaler of gradients, which does not go with {target}; accepted is bf16-mixed, 32-true"
        yield "trainer.precision", precision, accepted
    if target == "LocalSGD" and (ema := of("callbacks.ema")) is not None:
        accepted = "each process would have a mean of its own; accepted without trainer/communication=local_sgd"
        yield "callbacks.ema", ema._target_, accepted
    if target == "LocalSGD" and of("guards.nonfinite.action") == "skip":
        accepted = "a process would leave out a step that others make; accepted with trainer/communication=local_sgd is stop"
        yield "guards.nonfinite.action", "skip", accepted


def monitored(cfg: DictConfig) -> Iterator[tuple[str, str]]:
    """The metrics that a run is compared, stopped or saved by: the key, and the name."""
    yield "optimized_metric", cfg.optimized_metric
    groups = {"model.lr_scheduler": OmegaConf.select(cfg, "model.lr_scheduler")}
    groups |= {f"callbacks.{name}": cfg.callbacks[name] for name in cfg.get("callbacks") or {}}
    for name, group in groups.items():
        if isinstance(group, DictConfig) and group.get("monitor") is not None:
            yield f"{name}.monitor", group.monitor


def check_metric(cfg: DictConfig, key: str, metric: str) -> None:
    names = OmegaConf.select(cfg, "model.metrics")
    if names is None:  # a model of one's own that declares none
        return
    declared = [f"{stage}/{name}" for stage in STAGES for name in names]
    declared += [f"{stage}/{name}" for stage in STAGES[1:] for name in OmegaConf.select(cfg, "model.torchmetrics") or {}]
    if metric not in declared:
        raise config_error(key, metric, f"the model declares {', '.join(declared)}")
    if key == "optimized_metric" and metric.startswith("test/") and not cfg.test:
        raise config_error(key, metric, "needs test=true")
    if metric.startswith("val/") and OmegaConf.select(cfg, "trainer.limit_val_batches") == 0:
        raise config_error(key, metric, "needs validation; trainer.limit_val_batches is 0")
    if metric.startswith("val/") and not _has_validation(cfg):
        raise config_error(key, metric, "needs validation; datamodule.val_fraction is 0")
    interval, epochs = (OmegaConf.select(cfg, f"trainer.{name}") for name in ("check_val_every_n_epoch", "max_epochs"))
    if metric.startswith("val/") and 0 < (epochs or -1) < (interval or 1):
        accepted = f"{key}={metric} needs a validation in trainer.max_epochs={epochs}; accepted is 1 to {epochs}"
        raise config_error("trainer.check_val_every_n_epoch", interval, accepted)


def _has_validation(cfg: DictConfig) -> bool:
    """A part of the training data, unless that is set to none; or a split of the data's own."""
    fraction, folds, folder = (OmegaConf.select(cfg, f"datamodule.{name}") for name in ("val_fraction", "folds", "data_dir"))
    if fraction != 0 or folds or "val_length" in (cfg.datamodule or ()):
        return True
    # folders or files that are named for it, as an ImageFolder or the library `datasets` finds them
    pattern = rf"(?<![a-z])({'|'.join(VALIDATION)})(?![a-z])"
    places = [] if folder is None else [Path(folder), Path(folder, "data")]
    return any(re.search(pattern, path.name) for place in places for path in place.glob("*"))


def _check_data_dir(cfg: DictConfig) -> None:
    """A folder the user names must exist; the one a download goes to is made by it."""
    path = OmegaConf.select(cfg, "datamodule.data_dir")
    if path is not None and OmegaConf.select(cfg, "datamodule.dataset") is None and not Path(path).is_dir():
        accepted = f"no such folder: {Path(path).absolute()}; accepted is a folder with data"
        raise config_error("datamodule.data_dir", path, accepted)


def check_checkpoint(key: str, path: Path) -> None:
    """A checkpoint must be there and be a whole zip archive, which is what torch.save writes."""
    if not path.is_file():
        check_is_here(key, path)
        accepted = f"no such file: {path.absolute()}; accepted is a checkpoint, RUN_DIR/checkpoints/best.ckpt say"
        raise config_error(key, path, accepted)
    try:
        stat = path.stat()
        is_recent = abs(time.time() - stat.st_mtime) < _SETTLED
        first_damaged = _first_damaged.__wrapped__ if is_recent else _first_damaged
        damaged = first_damaged(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    except Exception as error:  # zipfile raises what it meets: BadZipFile, zlib.error, RuntimeError, ...
        raise config_error(key, path, f"not a readable checkpoint ({error})") from error
    if damaged is not None:
        raise config_error(key, path, f"the checkpoint is corrupt (at {damaged})")


_SETTLED = 2.0  # seconds after which a file that is changed once more has another time, on any file system


@functools.cache
def _first_damaged(path: Path, *_: int) -> str | None:
    """The first member whose checksum is wrong. Reads the whole file, so once a process: the same number, time and size are
    the same file."""
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()
