"""Models built from a composed model group."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from lightning import LightningModule
from torch.optim import Optimizer

from lockstep.config.construct import arguments_of, construct, naming, resolve
from lockstep.config.plan import rate_key
from lockstep.datamodules.base import DataSpec
from lockstep.datamodules.from_config import construct_lightning
from lockstep.errors import config_error
from lockstep.models.schedules import TrainingLength
from lockstep.models.supervised import Supervised

# Keys of Lightning's scheduler dictionary.
_LIGHTNINGS = ("interval", "frequency", "monitor", "strict", "name")


def build_model(group: Mapping[str, Any], spec: DataSpec | None, lr: float | None = None) -> LightningModule:
    """Build a model from a composed model group in plain containers. `lr` replaces the group's learning rate.

    The group's `net` is built first. A Supervised model also has its `adapt` and `lr_scheduler` built first.
    """
    parts = dict(group)
    given: dict[str, Any] = {}
    if lr is not None and (key := rate_key(group)) is not None:
        parts |= {"optimizer": parts["optimizer"] | {"lr": lr}} if key == "optimizer.lr" else {key: lr}
    kind = resolve("model", parts.get("_target_"))
    is_supervised = isinstance(kind, type) and issubclass(kind, Supervised)
    if is_supervised and spec is None:
        needs = "needs data with a `spec`, the shape of its inputs and the number of outputs"
        raise config_error("model._target_", parts["_target_"], f"{needs}; use a lockstep.datamodules.DataModule")
    if isinstance(net := parts.get("net"), dict) and "_target_" in net:
        shapes = {} if spec is None else {"input_shape": spec.input_shape, "num_outputs": spec.num_outputs}
        given["net"] = construct("model.net", parts.pop("net"), shapes)
    if is_supervised and spec is not None:
        given |= {"spec": spec, "model_config": {"model": group, "spec": asdict(spec)}}
        if (adapt := parts.pop("adapt", None)) is not None:
            given["net"] = construct("model.adapt", adapt, given)
        given["lr_scheduler"] = schedule("model.lr_scheduler", parts.pop("lr_scheduler", None) or {})
    return construct_lightning("model", parts, given, LightningModule)


def schedule(key: str, node: Any) -> Callable[[Optimizer, TrainingLength], dict[str, Any]]:
    """Return a function that makes Lightning's scheduler dictionary by calling the node's target with the optimizer.

    A target with an argument `training` is given the TrainingLength. It returns one of torch's schedulers, or a dictionary. Keys
    of Lightning's dictionary in the node, such as `interval` or `monitor`, go there unless they are arguments of the target.
    """
    arguments = arguments_of(resolve(key, node.get("_target_")))
    options = {name: node[name] for name in _LIGHTNINGS if name in node and not arguments.takes(name)}
    rest = {name: value for name, value in node.items() if name not in options}
    make = construct(key, rest | {"_partial_": True})

    def scheduler(optimizer: Optimizer, training: TrainingLength) -> dict[str, Any]:
        with naming(key):
            made = make(optimizer, **({"training": training} if "training" in arguments.own else {}))
        return options | (dict(made) if isinstance(made, Mapping) else {"scheduler": made})

    return scheduler
