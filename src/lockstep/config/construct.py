"""From a node of the config to an object; what its target does not take, or refuses, is one line that names the key."""

import re
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any

from hydra.errors import InstantiationException

from lockstep.config.arguments import arguments_of, shown
from lockstep.config.targets import resolve
from lockstep.errors import ConfigError, config_error

_KEYS = ("_target_", "_partial_", "_args_")
_OF_FITTING = ("lightning.", "lightning_utilities.", "torch.", "contextlib", f"{__name__.partition('.')[0]}.models.task")
_MISSING = re.compile(r"(\w+)\.__init__\(\) missing \d+ required .*?: '(\w+)'")
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'|multiple values for (?:keyword )?argument '(\w+)'")


class Factory:
    """A target and the values a config gives it, to be called with the rest: what is given then comes before the `keywords`, as
    those of a functools.partial."""

    def __init__(self, key: str, node: Any) -> None:
        """Raises ConfigError for a target that is not allowed or not there, and for arguments that it does not take."""
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise config_error(key, shown(node), "accepted is a group with a _target_")
        self.is_partial = node.get("_partial_", False)
        if not isinstance(self.is_partial, bool):
            raise config_error(f"{key}._partial_", shown(self.is_partial), "accepted is true, false")
        self.key, self.name = key, node["_target_"]
        self.target = resolve(key, self.name)
        self.callee = self.target.func if isinstance(self.target, partial) else self.target
        self.arguments = arguments_of(self.callee)
        self.keywords = {name: _built(f"{key}.{name}", value) for name, value in node.items() if name not in _KEYS}
        self.positional = _built(f"{key}._args_", node.get("_args_", []))
        if not isinstance(self.positional, list):
            raise config_error(f"{key}._args_", shown(self.positional), "accepted is a list")
        self.arguments.check(key, self.keywords)

    def __call__(self, *positional: Any, **given: Any) -> Any:
        for name in self.arguments.missing(given.keys() | self.keywords.keys(), len(self.positional) + len(positional)):
            raise config_error(f"{self.key}.{name}", "???", f"a value is required by {self.name}")
        try:
            return self.target(*self.positional, *positional, **(self.keywords | given))
        except ConfigError:
            raise
        except Exception as error:
            from lockstep.config.memory import refused_for_memory

            if (refusal := refused_for_memory(self.key, self.keywords, error) or self._refusal(error)) is None:
                raise
            raise refusal from error

    def construct(self, given: Mapping[str, Any]) -> Any:
        """Calls the target with those of the given arguments that it takes."""
        accepted = {name: value for name, value in given.items() if self.arguments.takes(name)}
        for name in accepted.keys() & self.keywords.keys():
            raise config_error(f"{self.key}.{name}", shown(self.keywords[name]), "is set elsewhere; accepted is to leave it out")
        return self(**accepted)

    def _refusal(self, error: Exception) -> ConfigError | None:
        bases = {base.__name__ for base in getattr(self.callee, "__mro__", ())}
        if isinstance(error, TypeError) and (match := _MISSING.search(str(error))) and match[1] in bases:
            return config_error(f"{self.key}.{match[2]}", "???", f"a value is required by {self.name}")
        if isinstance(error, TypeError):
            match = _UNEXPECTED.search(str(error))
            name = match and (match[1] or match[2])
            if name not in self.keywords:
                return None
            others = ", ".join(other for other in self.arguments.types if other != name)
            is_twice = match is not None and match[2]
            accepted = "is set elsewhere; accepted is to leave it out" if is_twice else f"no such argument; accepted are {others}"
            return config_error(f"{self.key}.{name}", shown(self.keywords[name]), accepted)
        if isinstance(error, InstantiationException):  # Hydra checks again what is called, and with what
            return config_error(f"{self.key}._target_", self.name, _in_one_line(error))
        is_refusal = isinstance(error, ValueError | ImportError) or _is_misconfiguration(error)
        return name_refusal(self.key, self.name, self.keywords, error) if is_refusal else None


def construct(key: str, node: Any, given: Mapping[str, Any] | None = None) -> Any:
    """Calls the node's `_target_` with the node's values and those of the `given` ones that it takes.

    Nodes within the node that have a target are constructed first; `_partial_: true` makes a function of the rest, `_args_`
    come first. Nodes are plain containers.
    Raises ConfigError, naming the key below `key`, for an argument that the target does not take, lacks or refuses.
    """
    factory = Factory(key, node)
    return factory if factory.is_partial else factory.construct(given or {})


def _built(key: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_built(f"{key}.{i}", one) for i, one in enumerate(value))
    if not isinstance(value, dict):
        return value
    if "_target_" in value:
        return construct(key, value)
    return {name: _built(f"{key}.{name}", one) for name, one in value.items()}


def name_refusal(key: str, target: str, values: Mapping[str, Any], error: Exception) -> ConfigError:
    """Returns a refusal with a library's message, under the argument whose name and value it contains, or one of them."""
    line = _in_one_line(error)
    matches = {name: re.search(rf"\b{name.rstrip('s').replace('_', '[_ ]')}s?\b", line) for name in values}
    named = [name for _, name in sorted((match.start(), name) for name, match in matches.items() if match)]
    plain = {name: re.escape(shown(value)) for name, value in values.items() if isinstance(value, str | int | float)}
    valued = [name for name, text in plain.items() if re.search(rf"(?<![\w.]){text}(?![\w.])", line)]
    for name in (*(name for name in named if name in valued), *named, *valued):
        return config_error(f"{key}.{name}", shown(values[name]), line)
    return config_error(key, target, line)


def refused_by_lightning(error: BaseException, trainer: Mapping[str, Any]) -> ConfigError | None:
    """Returns a refusal for what Lightning itself raises when it has seen the data; None for other errors, and for those that
    come of a call by the user's own code."""
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    since = next((i for i, module in enumerate(modules) if module.startswith("lightning.")), len(modules))
    is_lightning_s = since < len(modules) and all(module.startswith(_OF_FITTING) for module in modules[since:])
    if not is_lightning_s or not modules[-1].startswith("lightning.") or not isinstance(error, Exception):
        return None
    if isinstance(error, ValueError) or _is_misconfiguration(error) or "Trainer(" in str(error):
        return name_refusal("trainer", str(trainer.get("_target_")), trainer, error)
    return None


def _is_misconfiguration(error: Exception) -> bool:
    return type(error).__name__ == "MisconfigurationException"  # Lightning's: not imported here


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).partition("\nfull_key")[0].split())
