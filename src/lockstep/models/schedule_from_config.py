"""Any schedule that a config names: of this package, of torch, or of the user's own."""

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from lockstep.config.arguments import arguments_of
from lockstep.config.construct import construct, naming, resolve
from lockstep.models.schedules import TrainingLength

_OF_LIGHTNING = ("interval", "frequency", "monitor", "strict", "name")  # keys of its scheduler dictionary
_WARMUP = ("warmup_steps", "warmup_epochs")


class Schedule:
    """Call the group's target with the optimizer, and with the TrainingLength if it has an argument called `training`, to get
    one of torch's schedulers or Lightning's dictionary of one.

    Those of `interval`, `frequency`, `monitor`, `strict` and `name` that the target does not take are Lightning's: when the
    scheduler advances, every epoch by default, and the metric in which a plateau is looked for.
    """

    def __init__(self, key: str, node: Mapping[str, Any]) -> None:
        arguments = arguments_of(resolve(key, node.get("_target_")))
        self.when = {name: node[name] for name in _OF_LIGHTNING if name in node and not arguments.takes(name)}
        unused = {name for name in _WARMUP if not node.get(name) and not arguments.takes(name)}  # of the file constant.yaml
        rest = {name: value for name, value in node.items() if name not in self.when and name not in unused}
        self.key, self.make = key, construct(key, rest | {"_partial_": True})
        self.takes_length = "training" in arguments.own

    def __call__(self, optimizer: Optimizer, training: TrainingLength) -> dict[str, Any]:
        """Return Lightning's scheduler dictionary."""
        with naming(self.key):
            made = self.make(optimizer, **({"training": training} if self.takes_length else {}))
        return self.when | (dict(made) if isinstance(made, Mapping) else {"scheduler": made})
