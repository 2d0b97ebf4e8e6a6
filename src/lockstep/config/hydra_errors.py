"""Errors of Hydra and OmegaConf as one line that names the override or the key."""

import sys
from difflib import get_close_matches
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from lockstep.config.overrides import is_group, nodes, override_key
from lockstep.errors import ConfigError


def explain(error: Exception) -> str | None:
    """Return one line for a refused config, or one that could not be composed; None for an error of another kind."""
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
        return _unknown_key(str(key), cause.parent_node)
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return None
    given = [item for item in sys.argv[1:] if "=" in item and (item in str(error) or (key and override_key(item) == key))]
    reason = " ".join(str(cause).partition("full_key:")[0].split()) or type(cause).__name__
    return f"{next(iter(given), key or ' '.join(sys.argv[1:]))}: {reason}"


def _unknown_key(key: str, parent: Any) -> str:
    override = next((item for item in sys.argv[1:] if f"{override_key(item)}.".startswith(f"{key}.")), key)
    if is_group(option := key.replace(".", "/")) and override_key(override) == key:
        return f"{override}: a group of values; use {option}={override.partition('=')[2]}"
    group, _, name = override_key(override).rpartition(".")
    known = [one for one, _ in nodes(OmegaConf.to_container(parent._get_root())) if not one.startswith("hydra.")]
    near = [one for one in known if one.rpartition(".")[0] == group]  # first the keys of the same group, and of its root
    rooted = [one for one in known if one.startswith(f"{group.partition('.')[0]}.")]
    for among, wanted in ((near, name), (rooted, name), (known, key.rpartition(".")[2])):
        names = get_close_matches(wanted, {one.rpartition(".")[2] for one in among}, n=1)
        if close := [one for one in among if one.rpartition(".")[2] in names]:
            break
    guess = f"did you mean {', '.join(close)}? " if 0 < len(close) <= 3 else ""
    return f"{override}: unknown key; {guess}use a key that `--cfg job` prints; +{override} adds a new one"
