"""Parameters that are trained with options of their own, chosen by their names."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lockstep.config.arguments import shown
from lockstep.errors import config_error

Groups = Mapping[str, Mapping[str, Any]]
_OPTIONS = ("lr_factor",)  # options of a group, besides the optimizer's


def make_optimizer(make: Callable[..., Optimizer], model: nn.Module, groups: Groups, **options: Any) -> Optimizer:
    """Call make(parameters, **options), where a group of parameters may have options of its own.

    A parameter belongs to the first group whose `match`, a regular expression, is found in its name; those that belong to none
    come first. The rest of a group are options of the optimizer, which has its own where a group says nothing, and
    `lr_factor`: the group's learning rate is the optimizer's times this.

    A group whose `match` is a list of expressions, from the last layers to the first, is one group for each, with a learning rate
    that is multiplied by its `lr_decay` from each to the next (Howard & Ruder 2018, arXiv:1801.06146).

    Raises ConfigError for a group that no parameter belongs to, and for an option that the optimizer does not have.
    """
    groups = _by_depth(groups)
    members: dict[str | None, list[nn.Parameter]] = {None: [], **{name: [] for name in groups}}
    patterns = {name: _compiled(name, group["match"]) for name, group in groups.items()}
    for name, parameter in model.named_parameters():
        members[next((group for group, pattern in patterns.items() if pattern.search(name)), None)].append(parameter)
    for name, group in groups.items():
        if not members[name]:
            some = ", ".join([name for name, _ in model.named_parameters()][:4])
            accepted = f"no parameter is left that it is found in; use part of a name such as {some}"
            raise config_error(f"model.param_groups.{name}.match", group["match"], accepted)
    own = {name: {key: value for key, value in group.items() if key != "match"} for name, group in groups.items()}
    parameters = [{"params": some} | own.get(name or "", {}) for name, some in members.items() if some]
    optimizer = make(parameters, **options)
    _check_options(own, optimizer.defaults)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * group.pop("lr_factor", 1.0)
    return optimizer


def _by_depth(groups: Groups) -> dict[str, Mapping[str, Any]]:
    expanded: dict[str, Mapping[str, Any]] = {}
    for name, group in groups.items():
        if not isinstance(group, Mapping) or "match" not in group:
            raise config_error(f"model.param_groups.{name}.match", "???", "a value is required: part of a parameter's name")
        decay, layers = group.get("lr_decay"), group["match"]
        if decay is None or not isinstance(layers, list) or not (isinstance(decay, int | float) and decay > 0):
            if decay is not None or isinstance(layers, list):
                accepted = "use a number above 0, with a list of expressions as match"
                raise config_error(f"model.param_groups.{name}.lr_decay", shown(decay), accepted)
            expanded[name] = group
            continue
        rest = {key: value for key, value in group.items() if key != "lr_decay"}
        for depth, layer in enumerate(layers):
            expanded[f"{name}.{depth}"] = rest | {"match": layer, "lr_factor": rest.get("lr_factor", 1.0) * decay**depth}
    return expanded


def _compiled(name: str, pattern: Any) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        accepted = f"not a regular expression ({error}); use part of a parameter's name"
        raise config_error(f"model.param_groups.{name}.match", pattern, accepted) from error


def _check_options(groups: Groups, of_optimizer: Iterable[str]) -> None:
    """Raise ConfigError for an option that does not exist: torch stores in a group whatever it is given."""
    accepted = [*sorted(of_optimizer), *_OPTIONS]
    for name, options in groups.items():
        for key, value in options.items():
            if key not in accepted:
                needs = f"no such option; use match, {', '.join(accepted)}"
                raise config_error(f"model.param_groups.{name}.{key}", value, needs)
            if key in ("lr", *_OPTIONS) and not (isinstance(value, int | float) and value >= 0):
                raise config_error(f"model.param_groups.{name}.{key}", value, "use a number of at least 0")
