"""Whose data a LightningModule with loaders of its own is trained on."""

from contextlib import nullcontext

import pytest
from hydra.core.hydra_config import HydraConfig
from lightning_modules import Classifier, OwnLoaders
from omegaconf import OmegaConf

from lockstep.build import check_training_data
from lockstep.errors import ConfigError


def test_data_given_by_default_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for overrides in (["model=mine"], ["model=mine", "datamodule=digits"]):
        hydra = {"overrides": {"task": overrides}, "runtime": {"choices": {"datamodule": "digits"}}}
        monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": hydra}))
        check_training_data(Classifier(), has_datamodule=True)
        check_training_data(OwnLoaders(), has_datamodule=False)
        refusal = pytest.raises(
            ConfigError, match=r"^datamodule=digits: is the default, and OwnLoaders has loaders of its own; use"
        )
        with refusal if len(overrides) == 1 else nullcontext():
            check_training_data(OwnLoaders(), has_datamodule=True)
