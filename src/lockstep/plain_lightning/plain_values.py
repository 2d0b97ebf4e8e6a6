"""Values that torch.load accepts with weights_only=True."""

from collections.abc import Mapping
from typing import Any

from lightning import LightningDataModule, LightningModule
from omegaconf import OmegaConf
from torch import Tensor


def is_plain(value: Any) -> bool:
    """Return whether torch.load accepts a value with weights_only=True."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(is_plain, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str) or isinstance(value, Tensor)


def leave_out_objects(checkpoint: dict[str, Any]) -> set[str]:
    """Remove objects such as networks and functions, which `save_hyperparameters` stores if they were arguments. Return their
    names."""
    names: set[str] = set()
    for key in (LightningModule.CHECKPOINT_HYPER_PARAMS_KEY, LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY):
        values: Any = checkpoint.get(key)
        if OmegaConf.is_config(values):
            checkpoint.pop(LightningModule.CHECKPOINT_HYPER_PARAMS_TYPE, None)
            values = OmegaConf.to_container(values, resolve=True)
        if values:
            checkpoint[key] = {name: value for name, value in values.items() if is_plain(value)}
            names |= values.keys() - checkpoint[key].keys()
    return names
