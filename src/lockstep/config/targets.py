"""The one place where a `_target_`, which is text, becomes a class or a function; and those that a config names."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lockstep.config.arguments import shown
from lockstep.config.overrides import nodes
from lockstep.errors import ConfigError, config_error

_lookup = functools.cache(lambda path: instantiate({"_target_": path, "_partial_": True}))


def resolve(key: str, path: Any) -> Callable[..., Any]:
    """The callable that `key`'s `_target_` names. Hydra refuses targets that run code, when they are looked up and when they are
    called. Raises ConfigError where there is no such thing."""
    if not isinstance(path, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", path):
        accepted = "accepted is the full name of a class or function, lockstep.nets.CNN say"
        raise config_error(f"{key}._target_", shown(path), accepted)
    try:
        return _lookup(path).func
    except InstantiationException as error:
        raise _lookup_error(key, path, error) from error


def _lookup_error(key: str, path: str, error: InstantiationException) -> Exception:
    """One line; but a bug in the module that was imported stays what it is."""
    cause: BaseException | None = error.__cause__
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    if cause is not None and not isinstance(cause, ImportError | AttributeError | ConfigError):
        raise cause
    reason = " ".join(str(cause or error).partition("\nfull_key")[0].split())
    return config_error(f"{key}._target_", path, f"{reason}; accepted is the full name of a class or function that may be called")


def targets_in(config: Any) -> Iterator[tuple[str, Any]]:
    """Each `_target_` in plain containers, and the key of the group that it is in."""
    for key, value in (("", config), *nodes(config)):
        if isinstance(value, Mapping) and "_target_" in value:
            yield key, value["_target_"]


def own_modules(cfg: DictConfig) -> list[str]:
    """The modules of this package that a config names, for the fork server to import."""
    targets = {str(target) for _, target in targets_in(OmegaConf.to_container(cfg))}
    return sorted({target.rpartition(".")[0] for target in targets if target.startswith("lockstep.")})
