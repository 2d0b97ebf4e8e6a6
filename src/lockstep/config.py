"""What can be wrong in a composed config, checked before anything heavy is imported."""

import datetime
import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

STAGES = ("train", "val", "test")


class ConfigError(ValueError):
    """The run cannot start as configured: one line for a person, exit code 2."""


class NamedFailure(RuntimeError):
    """A failure whose one line says everything: no stack trace is shown for it."""


def refuse(key: str, value: object, accepted: str) -> ConfigError:
    """The one line every refusal consists of: the key, its value, and what would be accepted."""
    return ConfigError(f"{key}={value}: {accepted}")


@dataclass(frozen=True)
class Accepts:
    """A test of one value, and the words for what passes it."""

    words: str
    test: Callable[[Any], bool]

    def or_null(self) -> "Accepts":
        return Accepts(f"{self.words}, or null", lambda value: value is None or self.test(value))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_int(value) or isinstance(value, float)


def integer(least: int, most: float = float("inf")) -> Accepts:
    bounds = f"of at least {least}" if most == float("inf") else f"between {least} and {most}"
    return Accepts(f"accepted is an integer {bounds}", lambda v: _is_int(v) and least <= v <= most)


def number(least: float, most: float = float("inf")) -> Accepts:
    bounds = f"of at least {least:g}" if most == float("inf") else f"between {least:g} and {most:g}"
    return Accepts(f"accepted is a number {bounds}", lambda v: _is_number(v) and math.isfinite(v) and least <= v <= most)


def one_of(*options: object) -> Accepts:
    words = "accepted is " + ", ".join(str(option).lower() if isinstance(option, bool) else str(option) for option in options)
    return Accepts(words, lambda v: any(v == option and isinstance(v, type(option)) for option in options))


def _is_devices(value: Any) -> bool:
    if OmegaConf.is_list(value):
        return len(value) > 0 and all(_is_int(i) and i >= 0 for i in value) and len(set(value)) == len(value)
    return value in ("auto", -1) or (_is_int(value) and value >= 1)


def _is_duration(value: object) -> bool:
    try:
        days, hours, minutes, seconds = (int(part) for part in str(value).split(":"))
    except ValueError:
        return False
    return datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) > datetime.timedelta()


YES_NO = one_of(True, False)
TEXT = Accepts("accepted is text", lambda v: isinstance(v, str) and v != "")
LIMIT = Accepts(
    "accepted is a number of batches, or a fraction between 0.0 and 1.0",
    lambda v: (_is_int(v) and v >= 0) or (isinstance(v, float) and 0 <= v <= 1),
)
PRECISIONS = ("32-true", "32", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true", "64", 16, 32, 64)

# Checked where the key is present: a datamodule or model of one's own may lack any of them.
RULES: dict[str, Accepts] = {
    "name": TEXT,
    "seed": integer(0, 2**32 - 1),  # numpy's bounds
    "test": YES_NO,
    "resume": TEXT.or_null(),
    "max_restarts": integer(0),
    "ckpt_path": TEXT.or_null(),
    "init_from": TEXT.or_null(),
    "optimized_metric": TEXT,
    "mode": one_of("max", "min"),
    "lr_scaling": one_of("none", "linear", "sqrt"),
    "base_batch_size": integer(1),
    "trainer.accelerator": one_of("auto", "cpu", "gpu", "cuda", "mps"),
    "trainer.devices": Accepts("accepted is a number of at least 1, auto, or a list of GPU ids", _is_devices),
    "trainer.num_nodes": integer(1),
    "trainer.precision": one_of(*PRECISIONS),
    "trainer.max_epochs": integer(-1).or_null(),
    "trainer.max_steps": integer(-1),
    "trainer.max_time": Accepts("accepted is a time as DD:HH:MM:SS", _is_duration).or_null(),
    "trainer.accumulate_grad_batches": integer(1),
    "trainer.gradient_clip_val": number(0).or_null(),
    "trainer.gradient_clip_algorithm": one_of("norm", "value"),
    "trainer.check_val_every_n_epoch": integer(1).or_null(),
    "trainer.limit_train_batches": LIMIT,
    "trainer.limit_val_batches": LIMIT,
    "trainer.limit_test_batches": LIMIT,
    "trainer.val_check_interval": LIMIT,
    "trainer.strategy": Accepts("accepted is a group; override what is in it, trainer.strategy.KEY=VALUE", OmegaConf.is_dict),
    "trainer.log_every_n_steps": integer(1),
    "trainer.enable_progress_bar": YES_NO,
    "trainer.deterministic": one_of(True, False, "warn"),
    "trainer.benchmark": YES_NO.or_null(),
    "trainer.sync_batchnorm": YES_NO,
    "trainer.strategy.process_group_backend": one_of("nccl", "gloo").or_null(),
    "trainer.strategy.timeout": number(1),
    "trainer.strategy.gradient_as_bucket_view": YES_NO,
    "trainer.strategy.find_unused_parameters": YES_NO,
    "trainer.strategy.static_graph": YES_NO,
    "trainer.strategy.bucket_cap_mb": number(0.001),
    "datamodule.data_dir": TEXT,
    "datamodule.batch_size": integer(1),
    "datamodule.global_batch_size": integer(1).or_null(),
    "datamodule.drop_last": YES_NO,
    "datamodule.shuffle": YES_NO,
    "datamodule.num_workers": integer(0),
    "datamodule.pin_memory": YES_NO,
    "datamodule.persistent_workers": YES_NO,
    "datamodule.val_fraction": number(0, 0.9),
    "datamodule.folds": integer(2).or_null(),
    "datamodule.fold": integer(0),
    "datamodule.test_fraction": number(0, 0.9),
    "datamodule.standardize": YES_NO,
    "datamodule.augment": Accepts(
        "accepted is {crop: PIXELS, flip: true|false}, or null",
        lambda v: v is None or (OmegaConf.is_dict(v) and {str(key) for key in v} <= {"crop", "flip"}),
    ),
    "datamodule.augment.crop": integer(0),
    "datamodule.augment.flip": YES_NO,
    "datamodule.size": integer(1),
    "datamodule.length": integer(1),
    "datamodule.val_length": integer(1),
    "datamodule.test_length": integer(1),
    "datamodule.num_classes": integer(2),
    "model.metrics": Accepts(
        "accepted is a list of names", lambda v: OmegaConf.is_list(v) and all(isinstance(n, str) for n in v)
    ),
    "model.compile": YES_NO,
    "model.channels_last": YES_NO,
    "model.label_smoothing": number(0, 1),
    "model.net.dropout": number(0, 1),
    "model.optimizer.lr": number(0),
    "model.optimizer.weight_decay": number(0),
    "model.optimizer.momentum": number(0, 1),
    "model.lr_scheduler.interval": one_of("step", "epoch"),
    "model.lr_scheduler.frequency": integer(1),
    "model.lr_scheduler.warmup_steps": integer(0),
    "model.lr_scheduler.warmup_epochs": integer(0),
    "model.lr_scheduler.step_size": integer(1),
    "trainer.checkpoint_io.on_save_error": one_of("fail", "warn"),
    "trainer.checkpoint_io.async": YES_NO,
    "callbacks.checkpoint.every_n_epochs": integer(1).or_null(),
    "callbacks.checkpoint.every_n_steps": integer(1).or_null(),
    "callbacks.checkpoint.every_n_minutes": number(0.001).or_null(),
    "callbacks.preemption.every_n_steps": integer(1),
    "callbacks.nonfinite.action": one_of("stop", "skip"),
    "callbacks.nonfinite.every_n_steps": integer(1),
    "callbacks.watchdog.seconds": number(1),
    "callbacks.ema.decay": number(0, 1),
    "callbacks.ema.update_every_n_steps": integer(1),
    "callbacks.early_stopping.patience": integer(0),
    "callbacks.progress.refresh_rate": integer(0),
    "callbacks.pictures.samples": integer(1),
}


def check(cfg: DictConfig) -> None:
    """Raises ConfigError for the first thing that is wrong in the composed config."""
    _check_missing(cfg)
    for key, accepts in RULES.items():
        if _has(cfg, key) and not accepts.test(value := OmegaConf.select(cfg, key)):
            raise refuse(key, _shown(value), accepts.words)
    _check_workers(cfg)
    _check_folds(cfg)
    for key, metric in _monitored(cfg):
        _check_metric(cfg, key, metric)
    _check_data_dir(cfg)
    if _has_checkpoint(cfg):
        return  # and goes on from that: what it began with may be gone
    for key in ("ckpt_path", "init_from"):
        if (path := OmegaConf.select(cfg, key)) is not None:
            check_checkpoint(key, Path(path))


def _has_checkpoint(cfg: DictConfig) -> bool:
    """Is this run continued, from a checkpoint of its own?"""
    run_dir = OmegaConf.select(cfg, "resume")
    return run_dir is not None and any(Path(run_dir).glob("checkpoints/*.ckpt"))


def _has(cfg: DictConfig, key: str) -> bool:
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else cfg
    return isinstance(node, DictConfig) and leaf in node


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value) if isinstance(value, str) and not value else str(value)


def _check_missing(cfg: DictConfig) -> None:
    for key in sorted(OmegaConf.missing_keys(cfg)):
        raise refuse(key, "???", "a value is required")


def _check_workers(cfg: DictConfig) -> None:
    if OmegaConf.select(cfg, "datamodule.persistent_workers") and not cfg.datamodule.num_workers:
        raise refuse("datamodule.persistent_workers", "true", "needs datamodule.num_workers of at least 1")


def _check_folds(cfg: DictConfig) -> None:
    folds = OmegaConf.select(cfg, "datamodule.folds")
    if folds is not None and (fold := OmegaConf.select(cfg, "datamodule.fold")) >= folds:
        raise refuse("datamodule.fold", fold, f"accepted is 0 to {folds - 1}, for datamodule.folds={folds}")


def _monitored(cfg: DictConfig) -> Iterator[tuple[str, str]]:
    yield "optimized_metric", cfg.optimized_metric
    groups = {"model.lr_scheduler": OmegaConf.select(cfg, "model.lr_scheduler")}
    groups |= {f"callbacks.{name}": cfg.callbacks[name] for name in cfg.get("callbacks") or {}}
    for name, group in groups.items():
        if isinstance(group, DictConfig) and group.get("monitor") is not None:
            yield f"{name}.monitor", group.monitor


def _check_metric(cfg: DictConfig, key: str, metric: str) -> None:
    names = OmegaConf.select(cfg, "model.metrics")
    if names is None:  # a model of one's own that declares none
        return
    declared = [f"{stage}/{name}" for stage in STAGES for name in names]
    if metric not in declared:
        raise refuse(key, metric, f"the model declares {', '.join(declared)}")
    if key == "optimized_metric" and metric.startswith("test/") and not cfg.test:
        raise refuse(key, metric, "needs test=true")
    if metric.startswith("val/") and OmegaConf.select(cfg, "trainer.limit_val_batches") == 0:
        raise refuse(key, metric, "needs validation; trainer.limit_val_batches is 0")
    if metric.startswith("val/") and not _has_validation(cfg):
        raise refuse(key, metric, "needs validation; datamodule.val_fraction is 0")


def _has_validation(cfg: DictConfig) -> bool:
    """A part of the training data, unless that is set to none; or a split of the data's own."""
    if OmegaConf.select(cfg, "datamodule.val_fraction") != 0 or OmegaConf.select(cfg, "datamodule.folds"):
        return True
    folder = OmegaConf.select(cfg, "datamodule.data_dir")
    return "val_length" in cfg.datamodule or (folder is not None and (Path(folder) / "val").is_dir())


def _check_data_dir(cfg: DictConfig) -> None:
    """A folder the user names must exist; the one a download goes to is made by it."""
    path = OmegaConf.select(cfg, "datamodule.data_dir")
    if path is not None and OmegaConf.select(cfg, "datamodule.dataset") is None and not Path(path).is_dir():
        raise refuse("datamodule.data_dir", path, f"no such folder: {Path(path).absolute()}; accepted is a folder with data")


def check_checkpoint(key: str, path: Path) -> None:
    """A checkpoint must be there and be a whole zip archive, which is what torch.save writes."""
    if not path.is_file():
        raise refuse(key, path, f"no such file: {path.absolute()}; accepted is a checkpoint, RUN_DIR/checkpoints/best.ckpt say")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # zipfile raises what it meets: BadZipFile, zlib.error, RuntimeError, ...
        raise refuse(key, path, f"not a readable checkpoint ({error})") from error
    if damaged is not None:
        raise refuse(key, path, f"the checkpoint is corrupt (at {damaged})")
