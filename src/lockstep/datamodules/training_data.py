"""Check the training data of a LightningModule, which may have its own loaders."""

import logging

from hydra.core.hydra_config import HydraConfig
from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from lockstep.config.overrides import override_key
from lockstep.errors import config_error

log = logging.getLogger(__name__)


def check_training_data(model: LightningModule, has_datamodule: bool) -> None:
    """Raise ConfigError if there is no training data, or if the default data would replace the module's own."""
    has_own, name = is_overridden("train_dataloader", model), type(model).__name__
    if not has_datamodule and not has_own:
        raise config_error("datamodule", "null", f"{name} has no train_dataloader of its own; use a datamodule")
    if not has_datamodule or not has_own or not HydraConfig.initialized():
        return
    hydra = HydraConfig.get()
    option, given = hydra.runtime.choices["datamodule"], set(map(override_key, hydra.overrides.task))
    if "experiment" in given and "datamodule" not in given:
        log.warning(f"Trained on datamodule={option}, not on the loaders of {name}; with datamodule=null on these")
    elif "datamodule" not in given:
        accepted = f"use datamodule=null for these, or datamodule={option} for that data"
        raise config_error("datamodule", option, f"is the default, and {name} has loaders of its own; {accepted}")
