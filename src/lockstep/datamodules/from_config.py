"""The datamodule that is built from a composed group, and whether a model and its data go together."""

import logging
from typing import Any

from hydra.core.hydra_config import HydraConfig
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig

from lockstep.config.construct import construct, shown
from lockstep.config.overrides import override_key
from lockstep.config.plan import Plan
from lockstep.errors import config_error
from lockstep.runs.results import lacking_for_test

log = logging.getLogger(__name__)


def build_datamodule(settings: dict[str, Any] | None, plan: Plan) -> LightningDataModule | None:
    """Return the datamodule of a group in plain containers; None without one."""
    if settings is None:
        return None
    given = {}
    if "batch_size" in settings:  # follows from the global one, which a user's class need not accept
        total = settings.pop("global_batch_size", None)
        given = {"global_batch_size": total} if settings["batch_size"] is None and total is not None else {}
        settings["batch_size"] = plan.batch_size
    datamodule = construct("datamodule", settings, given)
    if not isinstance(datamodule, LightningDataModule):
        accepted = "use a LightningDataModule of lightning.pytorch, not of pytorch_lightning: import lightning.pytorch as pl"
        raise config_error("datamodule._target_", settings["_target_"], accepted)
    return datamodule


def check_data(cfg: DictConfig, model: LightningModule, datamodule: LightningDataModule | None) -> None:
    """Raise ConfigError without training data, if the default data would replace the module's own, or if the config asks for a
    test that is impossible. A test that it does not ask for is switched off."""
    has_own, name = is_overridden("train_dataloader", model), type(model).__name__
    if datamodule is None and not has_own:
        raise config_error("datamodule", "null", f"{name} has no train_dataloader of its own; use a datamodule")
    if datamodule is not None and has_own and HydraConfig.initialized():
        hydra = HydraConfig.get()
        option = hydra.runtime.choices["datamodule"]
        if not {"datamodule", "experiment"} & {override_key(item) for item in hydra.overrides.task}:
            accepted = f"use datamodule=null for these, or datamodule={option} for that data"
            raise config_error("datamodule", option, f"is the default, and {name} has loaders of its own; {accepted}")
    if cfg.test and (lacking := lacking_for_test(model, datamodule)) is not None:
        if cfg.test is True or (cfg.optimized_metric or "").startswith("test"):  # training would end with that
            raise config_error("test", shown(cfg.test), f"{lacking}; use test=auto, and no metric of a test")
        log.warning(f"Nothing will be tested: {lacking}.")
        cfg.test = False
