"""Optimizers with options of their own for parameters that are chosen by their names."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lockstep.config.construct import naming
from lockstep.errors import config_error

Groups = Mapping[str, Mapping[str, Any]]


def make_optimizer(make: Callable[..., Optimizer], model: nn.Module, groups: Groups, **options: Any) -> Optimizer:
    """Call make(parameters, **options), where a group of parameters may have options of its own.

    A parameter belongs to the first group whose `match`, a regular expression, is found in its name. Parameters without a group
    come first. Beside the optimizer's options a group may have an `lr_factor`, which multiplies the learning rate.

    Raises:
        ConfigError: No parameter belongs to a group, or the optimizer does not have an option.
    """
    members: dict[str | None, list[nn.Parameter]] = {key: [] for key in (None, *groups)}
    for name, parameter in model.named_parameters():
        members[next((key for key, group in groups.items() if re.search(group["match"], name)), None)].append(parameter)
    for key, group in groups.items():
        if not members[key]:
            names = ", ".join([name for name, _ in model.named_parameters()][:4])
            fix = f"no parameter is left that it is found in; use part of a name such as {names}"
            raise config_error(f"model.param_groups.{key}.match", group["match"], fix)
    with naming("model.optimizer"):
        optimizer = make([{"params": some} | {**groups.get(key or "", {})} for key, some in members.items() if some], **options)
    for key, group in groups.items():
        for option in group.keys() - optimizer.defaults.keys() - {"match", "lr_factor"}:  # torch ignores it
            fix = f"no such option; use match, lr_factor, {', '.join(optimizer.defaults)}"
            raise config_error(f"model.param_groups.{key}.{option}", group[option], fix)
    for group in optimizer.param_groups:
        group.pop("match", None)
        if "lr_factor" in group:
            group["lr"] *= group.pop("lr_factor")
    return optimizer
