"""What a checkpoint, or the config in a directory, which may be a stranger's, may name."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, Self, TypeVar

from lockstep.config.targets import BUILDABLE, find_package, is_project_module
from lockstep.errors import ConfigError, config_error

_PACKAGE = __name__.partition(".")[0]
_METRICS = ("aggregation", "classification", "clustering", "detection", "nominal", "regression", "retrieval", "segmentation")
_OF_MODELS = ("torch.nn", "torch.optim", "torchvision.models", *(f"torchmetrics.{name}" for name in _METRICS))
# Where what a checkpoint, or the config in a directory, names has to be defined. torchmetrics.text and the like load networks.
IN_A_CHECKPOINT = (f"{_PACKAGE}.models", f"{_PACKAGE}.nets", f"{_PACKAGE}.extras", *_OF_MODELS)
IN_A_DIRECTORY = (_PACKAGE, "lightning.pytorch", "torchvision.ops", "torchvision.transforms", *_OF_MODELS)
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class TrustedTargets:
    """What a file that was read, which may be a stranger's, may name.

    modules: in them classes that a run is made of, what is `buildable`, and torchvision's models.
    read: the directory or checkpoint that was read. Modules of the project are trusted, but for those beside it.
    allow: modules, and full names, that the user trusts whatever they are.
    """

    modules: Sequence[str]
    read: Path
    allow: Sequence[str] = ()

    @classmethod
    def for_checkpoint(cls, path: Path, allow: Sequence[str] = ()) -> Self:
        return cls(IN_A_CHECKPOINT, path, allow)

    @classmethod
    def for_directory(cls, path: Path, allow: Sequence[str] = ()) -> Self:
        return cls(IN_A_DIRECTORY, path, allow)

    def __call__(self, key: str, path: str) -> Callable[..., Any]:
        """The target. Raises ConfigError for one that may not be named; imports nothing then that is not trusted."""
        module, _, name = path.rpartition(".")
        is_allowed, is_own = _is_below(path, self.allow), is_project_module(module, self.read)
        is_near = any(_is_below(module, [one]) or _is_below(one, [module]) for one in self.modules)
        if any(part.startswith("_") for part in path.split(".")) or not (is_allowed or is_own or is_near):
            raise self._refusal(key, path)
        try:
            target = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise config_error(f"{key}._target_", path, f"{error}; accepted is the full name of a class") from error
        if path in self.allow and callable(target):
            return target
        where = str(getattr(target, "__module__", None))
        if not isinstance(target, type | FunctionType) or vars(sys.modules[where]).get(target.__qualname__) is not target:
            raise self._refusal(key, path)  # a method, an object, or what is defined within a function
        if _is_below(where, self.allow) or (
            is_project_module(where, self.read) and (self._is_for_a_run or self._is_part(target))
        ):
            return target
        if not _is_below(where, self.modules) or not (target in BUILDABLE or self._is_part(target) or _is_model_builder(target)):
            raise self._refusal(key, path)
        return _unpickling_nothing(target) if isinstance(target, FunctionType) else target

    @property
    def _is_for_a_run(self) -> bool:
        """Or of a model alone; a run may name functions of the project too, in its callbacks and data say."""
        return self.modules != IN_A_CHECKPOINT

    def _is_part(self, target: Any) -> bool:
        """Is it a class of what a model, or a run, is made of?"""
        kinds = _model_classes() + (_run_classes() if self._is_for_a_run else ())
        return isinstance(target, type) and issubclass(target, kinds)

    def _refusal(self, key: str, path: str) -> ConfigError:
        if (package := path.partition(".")[0]) not in sys.modules and find_package(package) is None:
            accepted = "accepted is one that is installed, or that the project in the working directory has"
            return config_error(f"{key}._target_", path, f"No module named {package!r}; {accepted}")
        libraries = ", ".join(dict.fromkeys(name.partition(".")[0] for name in self.modules))
        accepted = f"accepted are classes of {libraries} and of the project, or what is trusted by"
        if self._is_for_a_run:
            return config_error(f"{key}._target_", path, f"a directory's config may not name that; {accepted} allow=[{path}]")
        how = f"load_model(PATH, allow=[{path!r}]) or --allow {path}"
        return config_error(f"{key}._target_", path, f"a checkpoint may not name that; {accepted} {how}")


def _is_below(name: str, modules: Sequence[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _model_classes() -> tuple[type, ...]:
    from torch import nn, optim

    return nn.Module, optim.Optimizer, optim.lr_scheduler.LRScheduler  # torchmetrics' metrics are modules too


def _run_classes() -> tuple[type, ...]:
    from lightning import Callback, LightningDataModule, Trainer
    from lightning.pytorch.loggers import Logger
    from lightning.pytorch.profilers import Profiler
    from lightning.pytorch.strategies import Strategy

    return LightningDataModule, Callback, Logger, Profiler, Strategy, Trainer


def _is_model_builder(target: Any) -> bool:
    """torchvision lists its models by name, each with its function: a list of models, not of whatever builds."""
    from torchvision import models

    name = getattr(target, "__name__", None)
    return name in models.list_models() and models.get_model_builder(name) is target


def _unpickling_nothing(function: Callable[P, T]) -> Callable[P, T]:
    """torchvision's functions load pretrained weights with weights_only=False, from a cache whose files are not checked again."""

    @functools.wraps(function)
    def build(*args: P.args, **kwargs: P.kwargs) -> T:
        name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # of torch.load
        before = os.environ.get(name)
        os.environ[name] = "1"
        try:
            return function(*args, **kwargs)
        finally:
            os.environ.pop(name) if before is None else os.environ.update({name: before})

    return build
