"""Command lines that are wrong, or look so, made from the composed config: of every key of every group; those of scripts, in odd
environments, of keys that do not go together, and what people have typed."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf
from typed_command_lines import ENVIRONMENT, SCRIPTS, SIZES, TOGETHER, TYPED

from lockstep.runs.composition import compose

SHORT = ("debug=fast", "trainer=cpu", "trainer.max_steps=1", "trainer.enable_progress_bar=false")

# Together these have every group's options; a key is tried in the first that has it.
BASES: tuple[tuple[str, ...], ...] = (
    ("model=mlp", "logger=csv"),
    ("logger=tensorboard", "trainer/communication=local_sgd"),
    (
        *("model=cnn", "model/optimizer=sgd", "model/lr_scheduler=cosine", "callbacks=[default,early_stopping]"),
        *("datamodule=synthetic_images", "datamodule.length=256", "datamodule.val_length=64", "datamodule.test_length=64"),
    ),
    (
        *("model=linear", "model/lr_scheduler=plateau", "datamodule=random_regression", "callbacks=ema"),
        *("optimized_metric=val/loss", "optimized_mode=min"),
    ),
    ("model=mlp", "model/adapt=lora", "callbacks=freeze", "callbacks.freeze.match=lora_up"),
    ("model=mlp", "datamodule/curriculum=root"),
    ("model=resnet18", "model/optimizer=adam", "model/lr_scheduler=one_cycle", "trainer/communication=power_sgd"),
    ("model/lr_scheduler=step", "datamodule=image_folder", "datamodule.data_dir=pictures", "datamodule.batch_size=2"),
    *((("datamodule=hf_dataset", "datamodule.data_dir=pictures", "datamodule.inputs=image"),) if find_spec("datasets") else ()),
    (
        *("model=gpt_nano", "datamodule=text", "callbacks=tokens", "optimized_metric=val/loss", "optimized_mode=min"),
        *("datamodule.batch_size=2", "datamodule.context=16"),
    ),
    ("logger=mlflow", "trainer/communication=fp16"),
    ("datamodule=mnist", "datamodule.data_dir=nodata"),
)

# What is right although it looks wrong, beside null where null is shipped: it must train.
RIGHT = (
    *("callbacks.?*=null", "guards.?*=null", "logger.?*=null", "callbacks=null", "logger=null"),
    *("datamodule.augment=null", "events.?*=null", "allow=[[]x]"),
    *("guards.checkpoint.every_n_epochs=null", "guards.preemption.deadline=null", "trainer.max_epochs=null"),
    *("callbacks.best_checkpoint.dirpath=null", "callbacks.best_checkpoint.filename=null", "logger.*.name=null"),
    *("callbacks.best_checkpoint.monitor=null", "logger.*.version=null", "logger.*.version=5", "model.torchmetrics=null"),
    *("model.param_groups=null", "model.net.separator=null"),
    "datamodule.suffixes=[[]nonsense]",  # of the files of folders, of which there are none
)
# Keys that say how much data there is, how it is cut, or how large a sample is, in any datamodule or its augmentation.
DATA_SIZES = (
    "length",
    "val_length",
    "test_length",
    "shape",
    "size",
    "crop",
    "folds",
    "fold",
    "val_fraction",
    "context",
    "overlap",
)
DATA_SIZES += ("batch_size", "global_batch_size", "num_workers")
BAD_SIZES = ("0", "1", "1.5", "999999999", "100000000000000000000")
NAMED_BY_USERS = ("model.torchmetrics", "model.param_groups")  # the entries of these; what is in one is checked
FREE_TEXT = ("name", "*.dirpath", "*.filename", "*.save_dir", "*.experiment_name", "*.tracking_uri", "logger.*.name")
FREE_TEXT += ("logger.*.version", "logger.*.run_dir", "datamodule.cache_dir")
# Where the refusal rightly names another key: the one that no longer fits, or has no logger to be given to.
ELSEWHERE = {"model.metrics=[nonsense]": "optimized_metric", "logger.mlflow.tracking_uri=null": "logger.mlflow"}
ELSEWHERE |= {"datamodule.val_fraction=0": "optimized_metric", "datamodule.length=1": "datamodule.batch_size"}


@dataclass(frozen=True)
class Line:
    """What is wrong with a command line, its overrides, and the key that its refusal must name; None where it must train.

    is_fresh: in an interpreter of its own, which imports torch anew.
    may_train: it is right all the same where it is not refused.
    """

    kind: str
    overrides: tuple[str, ...]
    key: str | None
    script: str = "train.py"
    environment: tuple[str, ...] = ()
    is_fresh: bool = False
    may_train: bool = False

    def __str__(self) -> str:
        return " ".join([*self.environment, *([self.script] if self.script != "train.py" else ()), *self.overrides])

    @property
    def arguments(self) -> list[str]:
        """Of the script, flags first."""
        if self.script != "train.py":
            return [*self.overrides]
        flags = [item for item in self.overrides if item.startswith("-")]
        return [*flags, *SHORT, *(item for item in self.overrides if item not in flags)]


def lines() -> Iterator[Line]:
    seen: set[str] = set()
    for base in BASES:
        for key, value in _walk(compose(*SHORT, *base)):
            if key not in seen and key != "run_dir":
                yield from (Line(kind, (*base, override), key) for kind, override, key in _variants(key, value))
                yield from _data_sizes(base, key, value)
            seen.add(key)
    for name, *typed in _words(TYPED):
        yield Line("typed", tuple(typed), name)
    for name, *overrides in _words(TOGETHER):
        yield Line("keys that meet each other", tuple(overrides), name, is_fresh=True)
    for name, *overrides in _words(SIZES):
        yield Line("data sizes", tuple(overrides), name)
    for name, *variables in _words(ENVIRONMENT):
        yield Line("environment leftovers", (), name, environment=tuple(variables), is_fresh=True, may_train=True)
    for script, name, *arguments in _words(SCRIPTS):
        yield Line("scripts' own arguments", tuple(arguments), name, script=f"scripts/{script}")


def _data_sizes(base: tuple[str, ...], key: str, value: Any) -> Iterator[Line]:
    """Where it is one. Some values are right for some keys, a batch of one sample say."""
    if key.startswith("datamodule.") and key.rpartition(".")[2] in DATA_SIZES:
        for size in BAD_SIZES:
            text = f"[{','.join([size] * len(value))}]" if OmegaConf.is_list(value) else size
            override = f"{key}={text}"
            yield Line("data sizes", (*base, override), ELSEWHERE.get(override, key), may_train=True)


def _words(table: str) -> Iterator[list[str]]:
    return (line.split() for line in table.strip().splitlines())


def _walk(cfg: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in cfg.items():
        yield f"{prefix}{name}", value
        if isinstance(value, DictConfig):
            yield from _walk(value, f"{prefix}{name}.")


def _variants(key: str, value: Any) -> Iterator[tuple[str, str, str | None]]:
    """(kind, override, the key to be named) of one key."""
    wrong = [("another type", text) for text in _other_types(value)]
    wrong += [("out of range", text) for text in _out_of_range(key, value)]
    wrong += [("null", "null")] if value is not None else []
    for kind, text in wrong:
        override = f"{key}={text}"
        is_right = any(fnmatch(override, right) and override.count(".") == right.count(".") for right in RIGHT)
        named = key.removesuffix("._partial_")  # without it, what is lacking is named
        yield ("right", override, None) if is_right else (kind, override, ELSEWHERE.get(override, named))
    if isinstance(value, DictConfig):
        yield "unknown key", f"{key}.no_such_key=1", f"{key}.no_such_key"
        yield "unknown key", f"+{key}.no_such_key=1", key if key in NAMED_BY_USERS else f"{key}.no_such_key"


def _other_types(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("perhaps",)
    if isinstance(value, int | float):
        return "x", "true"
    if isinstance(value, str):
        return "5", "{a: 1}"
    if OmegaConf.is_list(value):
        return "5", "x"
    return ("5", "x") if isinstance(value, DictConfig) else ("{a: 1}", "[x]")


def _out_of_range(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ()
    if isinstance(value, int | float):
        return ("-7",) if isinstance(value, int) else ("-7", "nan")
    if isinstance(value, str):
        return () if any(fnmatch(key, free) for free in FREE_TEXT) else ("nonsense",)
    return ("[nonsense]", "[-1]") if OmegaConf.is_list(value) else ()
