"""The one place where a `_target_`, which is text, becomes a class or a function; and which of them what was read may name."""

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, Self, TypeVar

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from lockstep.errors import ConfigError, config_error

_PACKAGE = __name__.partition(".")[0]
_METRICS = ("aggregation", "classification", "clustering", "detection", "nominal", "regression", "retrieval", "segmentation")
_OF_MODELS = ("torch.nn", "torch.optim", "torchvision.models", *(f"torchmetrics.{name}" for name in _METRICS))
# Where what a checkpoint, or the config in a directory, names has to be defined. torchmetrics.text and the like load networks.
IN_A_CHECKPOINT = (f"{_PACKAGE}.models", f"{_PACKAGE}.nets", f"{_PACKAGE}.extras", *_OF_MODELS)
IN_A_DIRECTORY = (_PACKAGE, "lightning.pytorch", "torchvision.ops", "torchvision.transforms", *_OF_MODELS)
_TOOLS = ("tests", "scripts", "benchmarks", "docs")  # folders of a project that hold programs: what they define may start others
_BUILDABLE: set[Any] = set()
T = TypeVar("T")
P = ParamSpec("P")


def buildable(target: T) -> T:
    """Marks a function, or a class of another kind than `Trust` knows, as one that a file may name: it only makes an object."""
    _BUILDABLE.add(target)
    return target


@dataclass(frozen=True)
class Trust:
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

    def check(self, key: str, path: str) -> Callable[..., Any]:
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
        if not _is_below(where, self.modules) or not (target in _BUILDABLE or self._is_part(target) or _is_model_builder(target)):
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
        libraries = ", ".join(dict.fromkeys(name.partition(".")[0] for name in self.modules))
        accepted = f"accepted are classes of {libraries} and of the project, or what is trusted by"
        if self._is_for_a_run:
            return config_error(f"{key}._target_", path, f"a directory's config may not name that; {accepted} allow=[{path}]")
        how = f"load_model(PATH, allow=[{path!r}]) or --allow {path}"
        return config_error(f"{key}._target_", path, f"a checkpoint may not name that; {accepted} {how}")


def is_project_module(module: str, read: Path | None) -> bool:
    """Is it in the folder of the program or in the working directory, not installed there, and not beside what was read?"""
    package = module.partition(".")[0]
    no_parts = (*_TOOLS, _PACKAGE, Path(sys.argv[0]).stem)  # the program itself, train.py say, is no part of a run
    if not package or package in no_parts or package in sys.stdlib_module_names:
        return False
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location else [])]
    file = Path(*module.split(".")[1:])
    return bool(places) and all(is_project_path(Path(str(place)).resolve() / file, read) for place in places)


def is_project_path(place: Path, read: Path | None) -> bool:
    """Is it in the working directory or the program's folder, not installed there, and not beside what was read?"""
    if {"site-packages", "dist-packages"} & {*place.parts}:
        return False
    roots = [root for root in _projects(read) if place.is_relative_to(root)]
    return bool(roots) and (read is None or not any(_is_beside(place, read.resolve(), root) for root in roots))


def _projects(read: Path | None) -> list[Path]:
    """The working directory and the program's folder; that alone where it lies beside what was read, for it runs already."""
    here, script = Path.cwd().resolve(), Path(sys.argv[0]).resolve()
    if not script.is_file():
        return [here]
    program = script.parent.parent if script.parent.name in _TOOLS else script.parent
    is_beside = read is not None and program != here and _is_beside(program, read.resolve(), here)
    return [program] if is_beside else [here, program]


def _is_beside(place: Path, read: Path, root: Path) -> bool:
    """Is it in the same folder of the project, logs/ say, as what was read? It may have come with that."""
    if not read.is_relative_to(root):
        return False
    parts = read.relative_to(root).parts
    return len(parts) < (2 if read.is_file() else 1) or place.is_relative_to(root / parts[0])


def resolve(key: str, path: Any, trust: Trust | None = None) -> Callable[..., Any]:
    """The callable that `key`'s `_target_` names.

    Without `trust` it passes Hydra's own check of targets that run code, when it is looked up and again when it is called.
    Raises ConfigError where there is no such thing, or it may not be named.
    """
    if not isinstance(path, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", path):
        raise config_error(f"{key}._target_", path, "accepted is the full name of a class or function, lockstep.nets.CNN say")
    if trust is not None:
        return trust.check(key, path)
    try:
        return instantiate({"_target_": path, "_partial_": True})
    except InstantiationException as error:
        raise _lookup_error(key, path, error) from error


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


def _lookup_error(key: str, path: str, error: InstantiationException) -> Exception:
    """One line; but a bug in the module that was imported stays what it is."""
    cause: BaseException | None = error.__cause__
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    if cause is not None and not isinstance(cause, ImportError | AttributeError | ConfigError):
        raise cause
    reason = " ".join(str(cause or error).partition("\nfull_key")[0].split())
    return config_error(f"{key}._target_", path, f"{reason}; accepted is the full name of a class or function that may be called")
