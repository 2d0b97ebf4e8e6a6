"""The datamodule that is built from a composed group, and whether a model and its data go together."""

import logging
from collections.abc import Mapping
from typing import Any

from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig

from lockstep.config.construct import construct, shown
from lockstep.config.plan import Plan
from lockstep.datamodules.base import DataModule
from lockstep.errors import config_error

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
    return construct_lightning("datamodule", settings, given, LightningDataModule)


def construct_lightning(key: str, node: dict[str, Any], given: Mapping[str, Any], kind: type) -> Any:
    """Construct a LightningModule or a LightningDataModule. Raise ConfigError for another object."""
    made = construct(key, node, given)
    if not isinstance(made, kind):
        fix = f"use a {kind.__name__} of lightning.pytorch, not of pytorch_lightning: import lightning.pytorch as pl"
        raise config_error(f"{key}._target_", node["_target_"], fix)
    return made


def check_data(cfg: DictConfig, model: LightningModule, datamodule: LightningDataModule | None) -> None:
    """Raise ConfigError if the model and the config both have data, or if the config asks for an impossible test. A test that it
    does not ask for is switched off."""
    if datamodule is not None and is_overridden("train_dataloader", model):
        words = f"{type(model).__name__} has loaders of its own; use datamodule=null for these, or remove them from the class"
        raise config_error("datamodule", type(datamodule).__name__, words)
    if cfg.test and (lacking := lacking_for_test(model, datamodule)) is not None:
        if cfg.test is True or (cfg.optimized_metric or "").startswith("test"):  # training would end with that
            raise config_error("test", shown(cfg.test), f"{lacking}; use test=auto, and no metric of a test")
        log.warning(f"Nothing will be tested: {lacking}.")
        cfg.test = False


def lacking_for_test(model: Any, datamodule: Any) -> str | None:
    """Return why testing is impossible, or None."""
    if isinstance(datamodule, DataModule) and not datamodule.has_test:
        return "this data has no test split"
    for part, hook in ((model, "test_step"), (datamodule or model, "test_dataloader")):
        if not (isinstance(part, LightningModule | LightningDataModule) and is_overridden(hook, part)):
            return f"{type(part).__name__} has no {hook}"
    return None
