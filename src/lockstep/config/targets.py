"""The one place where a `_target_`, which is text, becomes a class or a function."""

import re
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from lockstep.errors import ConfigError, config_error

_PACKAGE = __name__.partition(".")[0]

# What a checkpoint, which may come from a stranger, can name: what models, their metrics and optimizers are made of.
_OWN = (f"{_PACKAGE}.models", f"{_PACKAGE}.nets")
_OF_LIBRARIES = ("torch.nn", "torch.optim", "torchvision.models", "torchmetrics.classification", "torchmetrics.regression")
_EXPORTED = r"torchmetrics\.\w+"  # what torchmetrics has from its other modules: where it is defined counts
IN_A_CHECKPOINT = (*_OWN, *_OF_LIBRARIES)


def resolve(key: str, path: Any, allow: Sequence[str] | None = None) -> Callable[..., Any]:
    """The callable that `key`'s `_target_` names.

    Without `allow` it passes Hydra's own check of targets that run code, when it is found and again when it is called.
    With it, it must be public and defined in one of those modules: nothing else is even imported.
    Raises ConfigError where there is no such thing, or it is not allowed.
    """
    if not isinstance(path, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", path):
        raise config_error(f"{key}._target_", path, "accepted is the full name of a class or function, lockstep.nets.CNN say")
    is_there = allow is None or _is_below(path, allow) or re.fullmatch(_EXPORTED, path)
    if allow is not None and (not is_there or any(part.startswith("_") for part in path.split("."))):
        raise _not_allowed(key, path, allow)
    try:
        found: Any = instantiate({"_target_": path, "_partial_": True})
    except InstantiationException as error:
        raise _not_found(key, path, error) from error
    if allow is None:
        return found
    if not _is_defined_there(found.func, allow):
        raise _not_allowed(key, path, allow)
    return found.func


def _is_below(name: str, modules: Sequence[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _is_defined_there(target: Any, allow: Sequence[str]) -> bool:
    """A class or function at the top of such a module: what a module has only imported, and methods, would lead out of it."""
    if not isinstance(target, type | FunctionType) or not _is_below(target.__module__, allow):
        return False
    if getattr(sys.modules.get(target.__module__), target.__qualname__, None) is not target:
        return False
    trusted = [module for module in allow if module not in _OF_LIBRARIES]  # these hold functions that do anything
    return _is_below(target.__module__, trusted) or _builds_a_model(target)


def _builds_a_model(target: Any) -> bool:
    """A module (as metrics are), an optimizer, a schedule, or one of torchvision's models."""
    from torch import nn, optim
    from torchvision import models

    if isinstance(target, type):
        return issubclass(target, nn.Module | optim.Optimizer | optim.lr_scheduler.LRScheduler)
    return target.__name__ in models.list_models() and models.get_model_builder(target.__name__) is target


def _not_allowed(key: str, path: str, allow: Sequence[str]) -> ConfigError:
    accepted = f"accepted are models defined in {', '.join(allow)}; trust another module by load_model(PATH, allow=[MODULE])"
    return config_error(f"{key}._target_", path, f"a checkpoint may not name that; {accepted} or --allow")


def _not_found(key: str, path: str, error: InstantiationException) -> Exception:
    """One line; but a bug in the module that was imported stays what it is."""
    cause: BaseException | None = error.__cause__
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    if cause is not None and not isinstance(cause, ImportError | AttributeError | ConfigError):
        raise cause
    reason = " ".join(str(cause or error).partition("\nfull_key")[0].split())
    return config_error(f"{key}._target_", path, f"{reason}; accepted is the full name of a class or function that may be called")
