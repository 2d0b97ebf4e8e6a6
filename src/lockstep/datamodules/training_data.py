"""Check of the data that a LightningModule, which may have loaders of its own, is trained on."""

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, OmegaConf

from lockstep.config.overrides import override_key
from lockstep.errors import config_error


def check_training_data(model: LightningModule, has_datamodule: bool) -> None:
    """Raise ConfigError if there is no training data, or if a default would replace the module's own."""
    has_own, name = is_overridden("train_dataloader", model), type(model).__name__
    if not has_datamodule and not has_own:
        raise config_error("datamodule", "null", f"{name} has no train_dataloader of its own; use a datamodule")
    if not has_datamodule or not has_own or not HydraConfig.initialized():
        return
    hydra = HydraConfig.get()
    option, given = hydra.runtime.choices["datamodule"], set(map(override_key, hydra.overrides.task))
    if "datamodule" not in given and ("experiment" not in given or option == _default_datamodule(hydra)):
        accepted = f"use datamodule=null for these, or datamodule={option} for that data"
        raise config_error("datamodule", option, f"is the default, and {name} has loaders of its own; {accepted}")


def _default_datamodule(hydra: Any) -> str | None:
    """Return the default of the config that is run; an experiment may name another one, or none."""
    paths = [Path(source.path, f"{hydra.job.config_name}.yaml") for source in hydra.runtime.config_sources]
    config: Any = next((OmegaConf.load(path) for path in paths if path.is_file()), OmegaConf.create())
    entries = [entry for entry in config.get("defaults", ()) if isinstance(entry, DictConfig)]
    return next((entry["datamodule"] for entry in entries if "datamodule" in entry), None)
