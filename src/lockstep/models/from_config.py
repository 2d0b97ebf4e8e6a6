"""Models built from a composed model group, and the description of one in a checkpoint."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from lockstep.config.construct import arguments_of, construct, naming, resolve
from lockstep.config.plan import rate_key
from lockstep.datamodules.base import DataSpec
from lockstep.errors import config_error
from lockstep.models.schedules import TrainingLength


def build_model(model_config: dict[str, Any], lr: float | None = None) -> LightningModule:
    """Build a model from plain containers: {"model": a composed model group, "spec": the fields of a DataSpec, None for data
    without one}.

    A group with `net`, `optimizer`, `lr_scheduler` or `torchmetrics` has them built first. A class that takes them is given
    `spec` and `model_config`, too.
    """
    parts, fields = dict(model_config["model"]), model_config["spec"]
    tuples = {name: tuple(value) for name, value in (fields or {}).items() if isinstance(value, list)}
    spec = None if fields is None else DataSpec(**fields | tuples)
    if lr is not None and (key := rate_key(parts)) is not None:
        group, _, name = key.rpartition(".")
        parts |= {group: parts[group] | {name: lr}} if group else {name: lr}
    asked = arguments_of(resolve("model", parts.get("_target_"))).types.keys() - parts.keys()
    given: dict[str, Any] = {"model_config": model_config} if "model_config" in asked else {}
    if "spec" in asked:
        if spec is None:
            needs = "needs data with a `spec`, the shape of its inputs and the number of outputs"
            raise config_error("model._target_", parts["_target_"], f"{needs}; use a lockstep.datamodules.DataModule")
        given["spec"] = spec
    if isinstance(net := parts.get("net"), dict) and "_target_" in net:
        given["net"] = _net(parts.pop("net"), spec)
    if (adapt := parts.pop("adapt", None)) is not None:
        given["net"] = construct("model.adapt", adapt, given)
    if parts.get("torchmetrics") is not None:
        given["torchmetrics"] = _metrics(parts.pop("torchmetrics"), None if spec is None else spec.num_outputs)
    if isinstance(schedule := parts.get("lr_scheduler"), dict) and "_target_" in schedule:
        given["lr_scheduler"] = Schedule("model.lr_scheduler", parts.pop("lr_scheduler"))
    model = construct("model", parts, given)
    if not isinstance(model, LightningModule):
        accepted = "use a LightningModule of lightning.pytorch, not of pytorch_lightning: import lightning.pytorch as pl"
        raise config_error("model._target_", parts["_target_"], accepted)
    return model


def plain_spec(datamodule: LightningDataModule | None) -> dict[str, Any] | None:
    """Return the fields of its DataSpec in plain containers; None without a DataSpec."""
    spec = getattr(datamodule, "spec", None)
    if not isinstance(spec, DataSpec):
        return None
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(spec).items()}


def _net(node: Any, spec: DataSpec | None) -> Any:
    shapes = {} if spec is None else {"input_shape": spec.input_shape, "num_outputs": spec.num_outputs}
    net = construct("model.net", node, shapes)
    if spec is not None and any(is_lazy(tensor) for tensor in (*net.parameters(), *net.buffers())):
        with torch.no_grad():  # while they depend on the seed alone; torch would in the first step, and DDP does not take them
            net.eval()(torch.zeros(2, *spec.input_shape))
        net.train()
    return net


def _metrics(nodes: dict[str, Any], num_classes: int | None) -> dict[str, Any]:
    """Return the model's torchmetrics, which are given the number of classes where they take it."""
    metrics = {}
    for name, node in nodes.items():
        key = f"model.torchmetrics.{name}"
        asks = "num_classes" in arguments_of(resolve(key, node.get("_target_"))).own and "num_classes" not in node
        metrics[name] = construct(key, node, {"num_classes": num_classes} if asks else {})
    return metrics


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
