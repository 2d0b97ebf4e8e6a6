"""What Hydra and OmegaConf say of a command line, in one line that names the override."""

import re
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from lockstep.config.checks import NEEDS_PACKAGE, OF_THE_WHOLE
from lockstep.config.overrides import is_group, nodes, override_key

_MANY = 8  # keys that a line has no room for
# What other programs call a key of ours.
_CALLED_HERE = {"data": "datamodule", "dataset": "datamodule", "epochs": "max_epochs", "gpus": "devices", "learning_rate": "lr"}
_CALLED_HERE |= {"nodes": "num_nodes", "steps": "max_steps", "workers": "num_workers"}


def explain(error: Exception) -> str | None:
    """Returns one line for an override that could not be applied, with what is accepted; None for an error of another kind."""
    cause = error.__cause__ or error
    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark) is not None:  # in a config file
        return f"{mark.name}, line {mark.line + 1}: {error.problem}; accepted is YAML"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not a valid override ({error}); accepted is KEY=VALUE, quoted where it has spaces"
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        return f"{group}={option}: accepted is one of {', '.join(error.options)}"
    if isinstance(error, MissingConfigException) and (match := re.match(r"In '(.+?)': Could not load '(.+)/(.+?)'", str(error))):
        _, options = _place_in_hydra(error, match[2])
        return f"{match[1]}.yaml: its defaults name {match[3]}; accepted is one of {', '.join(options)}"
    key = getattr(cause, "full_key", None)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and key:
        return _unknown_key(str(key), getattr(cause, "parent_node", None))
    override, options = next(filter(any, map(_place_in_hydra, (cause, error))), (None, []))
    names_it = override is not None or isinstance(error, ValueError)  # which names flags that don't go together, -m --cfg job
    if not isinstance(error, HydraException | OmegaConfBaseException) and not (names_it and _is_from_hydra(error)):
        return None
    said = [item for item in sys.argv[1:] if "${" in item or f"'{item}'" in str(error)]
    override = override or key or next(iter(said), " ".join(sys.argv[1:]))
    reason = _reason(cause)
    if re.search(rf"In '({'|'.join(OF_THE_WHOLE)})/.*@\1\.", reason):
        reason += f"; {NEEDS_PACKAGE}"
    return f"{override}: {reason}" + (f"; accepted is one of {', '.join(options)}" if options else "")


def _unknown_key(key: str, parent: Any) -> str:
    group, _, name = key.rpartition(".")
    above = [item for item in sys.argv[1:] if "=" in item and key.startswith(f"{override_key(item)}.")]
    override = next((item for item in sys.argv[1:] if item.startswith((f"{key}=", f"{key}."))), above[-1] if above else key)
    option, value = key.replace(".", "/"), override.partition("=")[2]
    if override_key(override) == key and is_group(option):
        return f"{override}: a group of values; accepted is {option}={value}"
    siblings = [str(name) for name in parent if name != "hydra"] if isinstance(parent, DictConfig) and parent else []
    unknown = f"{override}: unknown key" + (f" {key}" if override in above else "")
    if not siblings and override in above:
        return f"{unknown}; accepted is +{override} to add it"
    if not siblings:
        return f"{override}: {group} has no values of its own to change; accepted is {group}=..., or +{override} to add one"
    prefix = f"{group}." if group else ""
    close = _same_name_elsewhere(override_key(override), parent) or [
        prefix + one for one in get_close_matches(name, siblings, n=3)
    ]
    guess = f"did you mean {', '.join(close)}? " if close else ""
    listed = ", ".join(siblings)
    if len(siblings) > _MANY and Path(sys.argv[0]).name == "train.py":
        listed = f"the {len(siblings)} keys that `--cfg job{f' -p {group}' if group else ''}` in its place prints"
    return f"{unknown}; {guess}accepted are {listed}; +{override} adds a new one"


def _same_name_elsewhere(wanted: str, node: DictConfig) -> list[str]:
    """Returns the keys of the whole config that end as the wanted one does, or as it is called here, if they are few: the rate of
    another model, say."""
    name = wanted.rpartition(".")[2]
    names = name, _CALLED_HERE.get(name)
    keys = [key for key, _ in nodes(OmegaConf.to_container(node._get_root())) if key.rpartition(".")[2] in names]
    own = [key for key in keys if key.partition(".")[0] not in ("hydra", "events")]
    return own if len(own) <= 3 else []


def _place_in_hydra(error: BaseException, group: str | None = None) -> tuple[str | None, list[str]]:
    """Returns the override that Hydra was at when it raised, and the options of its group, or of the one that is given: not every
    message has them."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        override, repository = (frame.f_locals.get(name) for name in ("override", "repo"))
        if group is not None and repository is not None:
            return None, repository.get_group_options(group)
        if isinstance(line := getattr(override, "input_line", None), str):
            group = line.partition("=")[0].lstrip("+~").partition("@")[0]
            return line, repository.get_group_options(group) if repository and group else []
    return None, []


def _is_from_hydra(error: Exception) -> bool:
    """Returns whether Hydra or OmegaConf raised it: `model=5` is a bare ValueError, and so is `model.net.hidden.x=1`."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_globals.get("__name__", "").startswith(("hydra.", "omegaconf."))


def _reason(error: BaseException) -> str:
    """Returns the first paragraph of a message."""
    if "Ambiguous value for argument" in str(error):
        return "several values are a sweep's; accepted with -m, or a list, KEY=[VALUE,VALUE]"
    if match := re.search(r"invalid literal for int\(\) with base 10: '(.*)'", str(error)):
        return f"accepted in a list is a number, not {match[1]}"
    return " ".join(str(error).partition("full_key:")[0].split()) or type(error).__name__
