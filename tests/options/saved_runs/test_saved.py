"""The config of a run directory that is opened again."""

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from lockstep.errors import ConfigError
from lockstep.history.saved_runs import config_to_evaluate, saved_config
from lockstep.runs.validation import validated


def test_values_are_changed_unknown_keys_and_groups_refused(tmp_path: Path, compose: Callable[..., DictConfig]) -> None:
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(compose("trainer=cpu", "test=false", "seed=3"), tmp_path / ".hydra" / "config.yaml")
    cfg = saved_config(tmp_path, ["model.net.width=4", "+model.net.depth=2"])
    assert (cfg.seed, cfg.model.net.width, cfg.model.net.depth) == (3, 4, 2)
    with pytest.raises(ConfigError, match=r"^sed=3: unknown key; see .*/.hydra/config.yaml$"):
        saved_config(tmp_path, ["sed=3"])
    with pytest.raises(ConfigError, match=r"^model=mlp: a group can't be chosen anew; set values inside it, model.NAME=VALUE$"):
        saved_config(tmp_path, ["model=mlp"])
    cfg, _ = validated(config_to_evaluate(tmp_path, [], "evaluations"))
    assert cfg.test
