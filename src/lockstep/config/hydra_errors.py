"""Errors of Hydra and OmegaConf in one line that names the override."""

import sys
from difflib import get_close_matches
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from lockstep.config.overrides import is_group, nodes, override_key
from lockstep.errors import ConfigError


def explain(error: Exception) -> str | None:
    """Return one line for a refused config or an override that could not be applied; None for an error of another kind."""
    if isinstance(error, ConfigError):
        return str(error)
    cause = error.__cause__ or error
    key = getattr(cause, "full_key", None)
    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark) is not None:  # in a config file
        return f"{mark.name}, line {mark.line + 1}: {error.problem}; use YAML"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not a valid override ({error}); use KEY=VALUE, with signs of Hydra's grammar in quotes"
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        return f"{group}={option}: use one of {', '.join(error.options)}"
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and key:
        return _unknown_key(str(key), getattr(cause, "parent_node", None))
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return None
    given = [item for item in sys.argv[1:] if "=" in item and (item in str(error) or (key and override_key(item) == key))]
    reason = " ".join(str(cause).partition("full_key:")[0].split()) or type(cause).__name__
    if "Ambiguous value for argument" in reason:
        reason = "several values are a sweep's; use -m, or a list, KEY=[VALUE,VALUE]"
    return f"{next(iter(given), key or ' '.join(sys.argv[1:]))}: {reason}"


def _unknown_key(key: str, parent: Any) -> str:
    override = next((item for item in sys.argv[1:] if f"{override_key(item)}.".startswith(f"{key}.")), key)
    if is_group(option := key.replace(".", "/")) and override_key(override) == key:
        return f"{override}: a group of values; use {option}={override.partition('=')[2]}"
    close = _close_to(key, parent) if isinstance(parent, DictConfig) else []
    guess = f"did you mean {', '.join(close)}? " if close else ""
    return f"{override}: unknown key; {guess}use a key that `--cfg job` prints; +{override} adds a new one"


def _close_to(key: str, node: DictConfig) -> list[str]:
    """Return the keys of the whole config whose last part is like a key's, those beside it first, if they are few."""
    group, _, name = key.rpartition(".")
    keys = [key for key, _ in nodes(OmegaConf.to_container(node._get_root())) if not key.startswith("hydra.")]
    names = get_close_matches(name, {key.rpartition(".")[2] for key in keys}, n=1)
    close = [key for key in keys if key.rpartition(".")[2] in names]
    return [key for key in close if key.rpartition(".")[0] == group] or (close if len(close) <= 3 else [])
