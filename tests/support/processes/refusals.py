"""A config with changes, and what is said of one that can't be run."""

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.runs.validation import check


def changed(cfg: DictConfig, **changes: Any) -> DictConfig:
    for key, value in changes.items():
        OmegaConf.update(cfg, key, value, force_add=True)
    return cfg


def validate(cfg: DictConfig) -> None:
    check(cfg)
    Plan.from_config(cfg)


def refusal(cfg: DictConfig) -> str:
    with pytest.raises(ConfigError) as refused:
        validate(cfg)
    message = str(refused.value)
    assert "\n" not in message
    return message
