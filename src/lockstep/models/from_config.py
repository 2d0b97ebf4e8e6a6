"""Models built from a composed model group, and the description of one in a checkpoint."""

from collections.abc import Mapping
from typing import Any

from lightning import LightningDataModule, LightningModule

from lockstep.config.construct import arguments_in, construct, resolve
from lockstep.config.plan import rate_key
from lockstep.datamodules.base import DataSpec
from lockstep.errors import config_error
from lockstep.models.schedule_from_config import Schedule
from lockstep.models.task import Task


def build_model(
    model_config: dict[str, Any], lr: float | None = None, scaled: Mapping[str, Any] | None = None
) -> LightningModule:
    """Build a model from plain containers: {"model": a composed model group, "spec": the fields of a DataSpec, None for data
    without one}. `scaled`: options of the optimizer besides `lr` that replace the group's.

    A LightningModule of the user's own that is no Task is given the group's values and nothing else.
    """
    parts, fields = dict(model_config["model"]), model_config["spec"]
    tuples = {name: tuple(value) for name, value in (fields or {}).items() if isinstance(value, list)}
    spec = None if fields is None else DataSpec(**fields | tuples)
    if lr is not None:
        group, _, name = (rate_key(parts) or "").rpartition(".")
        parts |= {group: parts[group] | {name: lr, **(scaled or {})}} if group else {name: lr}
    if not is_task(parts):
        return _own_module(parts, spec)
    if "net" not in parts:
        raise config_error("model._target_", parts["_target_"], "needs a model.net")
    if parts.get("tta") == "none":  # in configs and checkpoints of earlier versions
        del parts["tta"]
    assert spec is not None, "a Task is of data with a DataSpec"
    given = {"net": _net(parts.pop("net"), spec), "spec": spec, "model_config": model_config}
    if (adapt := parts.pop("adapt", None)) is not None:
        given["net"] = construct("model.adapt", adapt, given)
    if parts.get("torchmetrics") is not None:
        given["torchmetrics"] = _metrics(parts.pop("torchmetrics"), spec.num_outputs)
    if isinstance(schedule := parts.get("lr_scheduler"), dict) and "_target_" in schedule:
        given["lr_scheduler"] = Schedule("model.lr_scheduler", parts.pop("lr_scheduler"))
    return construct("model", parts, given)


def is_task(model: Mapping[str, Any]) -> bool:
    """Return whether a model group names a Task, or names a function and has a net for one."""
    target: Any = resolve("model", model.get("_target_"))
    return issubclass(target, Task) if isinstance(target, type) else "net" in model


def plain_spec(datamodule: LightningDataModule | None) -> dict[str, Any] | None:
    """Return the fields of its DataSpec in plain containers; None without a DataSpec."""
    spec = getattr(datamodule, "spec", None)
    if not isinstance(spec, DataSpec):
        return None
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(spec).items()}


def _own_module(parts: dict[str, Any], spec: DataSpec | None) -> LightningModule:
    if isinstance(net := parts.get("net"), dict) and "_target_" in net:
        parts["net"] = _net(net, spec)
    model = construct("model", parts)
    if not isinstance(model, LightningModule):
        raise config_error("model._target_", parts["_target_"], "use a LightningModule, a lockstep.models.Task say")
    return model


def _net(node: Any, spec: DataSpec | None) -> Any:
    shapes = {} if spec is None else {"input_shape": spec.input_shape, "num_outputs": spec.num_outputs}
    return construct("model.net", node, shapes)


def _metrics(nodes: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """Return the model's torchmetrics, which are given the number of classes where they take it."""
    if not isinstance(nodes, dict):
        raise config_error("model.torchmetrics", nodes, "use {NAME: {_target_: torchmetrics....}}")
    metrics = {}
    for name, node in nodes.items():
        key = f"model.torchmetrics.{name}"
        asks = "num_classes" in arguments_in(key, node).own and "num_classes" not in node
        metrics[name] = construct(key, node, {"num_classes": num_classes} if asks else {})
    return metrics
