"""Any schedule that a config names: of this package, of torch, or of the user's own."""

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lockstep.config.arguments import arguments_of, shown
from lockstep.config.construct import construct, naming, resolve
from lockstep.errors import config_error
from lockstep.models import schedules

_OF_LIGHTNING = ("interval", "frequency", "monitor", "strict", "name")  # keys of its scheduler dictionary
_WARMUP = ("warmup_steps", "warmup_epochs")


class Schedule:
    """Call the group's target with the optimizer, and with the TrainingLength if it has an argument called `training` or
    annotated so, to get one of torch's schedulers or Lightning's dictionary of one.

    Those of `interval`, `frequency`, `monitor`, `strict` and `name` that the target does not take are Lightning's: when the
    scheduler advances, every epoch by default, and the metric in which a plateau is looked for.
    """

    def __init__(self, key: str, node: Mapping[str, Any]) -> None:
        target: Any = resolve(key, node.get("_target_"))
        arguments = arguments_of(target)
        rest = {name: value for name, value in node.items() if arguments.takes(name) or name not in (*_OF_LIGHTNING, *_WARMUP)}
        for name in _WARMUP:
            if name not in rest and node.get(name):
                raise config_error(f"{key}.{name}", shown(node[name]), f"{node['_target_']} has no warm-up; use 0")
        self.key, self.name = key, node["_target_"]
        self.make = construct(key, rest | {"_partial_": True})
        self.when = {name: node[name] for name in _OF_LIGHTNING if name in node and name not in rest}
        names = (name for name in arguments.own if name == "training" or arguments.types[name] is schedules.TrainingLength)
        self.training = next(names, None)  # the argument's name

    def __call__(self, optimizer: Optimizer, training: schedules.TrainingLength) -> dict[str, Any]:
        """Return Lightning's scheduler dictionary."""
        with naming(self.key):
            made = self.make(optimizer, **({self.training: training} if self.training else {}))
        entry = self.when | (dict(made) if isinstance(made, Mapping) else {"scheduler": made})
        scheduler = entry.get("scheduler")
        if not isinstance(scheduler, LRScheduler):
            accepted = f"returns a {type(made).__name__}; use what returns one of torch's schedulers, or Lightning's dictionary"
            raise config_error(f"{self.key}._target_", self.name, accepted)
        if isinstance(scheduler, ReduceLROnPlateau) and entry.get("monitor") is None:
            raise config_error(f"{self.key}.monitor", "null", "a plateau is looked for in a metric; use a metric's name")
        return entry
