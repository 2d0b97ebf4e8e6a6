"""Parameters that are trained with options of their own, chosen by their names."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lockstep.errors import config_error

Groups = Mapping[str, Mapping[str, Any]]


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
    for name, parameter in model.named_parameters():
        members[next((key for key, group in groups.items() if re.search(group["match"], name)), None)].append(parameter)
    for name, group in groups.items():
        if not members[name]:
            some = ", ".join([name for name, _ in model.named_parameters()][:4])
            accepted = f"no parameter is left that it is found in; use part of a name such as {some}"
            raise config_error(f"model.param_groups.{name}.match", group["match"], accepted)
    own = {name: {key: value for key, value in group.items() if key != "match"} for name, group in groups.items()}
    parameters = [{"params": some} | own.get(name or "", {}) for name, some in members.items() if some]
    optimizer = make(parameters, **options)
    for name, group in own.items():
        for option in group.keys() - optimizer.defaults.keys() - {"lr_factor"}:  # torch ignores it
            accepted = f"no such option; use match, lr_factor, {', '.join(optimizer.defaults)}"
            raise config_error(f"model.param_groups.{name}.{option}", group[option], accepted)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * group.pop("lr_factor", 1.0)
    return optimizer


def _by_depth(groups: Groups) -> dict[str, Mapping[str, Any]]:
    """Return the groups, with one for each layer in the place of a list of layers."""
    expanded: dict[str, Mapping[str, Any]] = {}
    for name, group in groups.items():
        if "match" not in group:
            raise config_error(f"model.param_groups.{name}.match", "???", "a value is required: part of a parameter's name")
        if not isinstance(group["match"], list):
            expanded[name] = group
            continue
        rest = {key: value for key, value in group.items() if key != "lr_decay"}
        for depth, layer in enumerate(group["match"]):
            factor = rest.get("lr_factor", 1.0) * group.get("lr_decay", 1.0) ** depth
            expanded[f"{name}.{depth}"] = rest | {"match": layer, "lr_factor": factor}
    return expanded
