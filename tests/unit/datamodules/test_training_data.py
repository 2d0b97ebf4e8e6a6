"""Whose data a LightningModule with loaders of its own is trained on."""

from contextlib import nullcontext

import pytest
from hydra.core.hydra_config import HydraConfig
from lightning_modules import Classifier, OwnLoaders
from omegaconf import OmegaConf

from lockstep.datamodules import Digits
from lockstep.datamodules.from_config import check_data
from lockstep.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "option", "is_refused"),
    [(["model=mine"], "digits", True), (["model=mine", "datamodule=digits"], "digits", False)],
)
def test_data_given_by_default_alone_is_refused(
    overrides: list[str], option: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hydra = {"overrides": {"task": overrides}, "runtime": {"choices": {"datamodule": option}}}
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": hydra}))
    cfg, data = OmegaConf.create({"test": False}), Digits()
    check_data(cfg, Classifier(), data)
    check_data(cfg, OwnLoaders(), None)
    refusal = f"^datamodule={option}: is the default, and OwnLoaders has loaders of its own; use"
    with pytest.raises(ConfigError, match=refusal) if is_refused else nullcontext():
        check_data(cfg, OwnLoaders(), data)
