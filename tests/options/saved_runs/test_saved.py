"""A run directory opened again: what of it is read, and what is refused in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from lockstep.errors import ConfigError
from lockstep.history.saved_runs import config_to_evaluate, saved_config
from lockstep.runs.validation import validated


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    content = OmegaConf.create({"model": {"net": {"width": 8}}, "seed": 3, "run_dir": "x"})
    OmegaConf.save(content, tmp_path / "run" / ".hydra" / "config.yaml")
    return tmp_path / "run"


def test_unknown_keys_and_other_groups_are_refused(run: Path) -> None:
    cfg = saved_config(run, ["model.net.width=4", "+model.net.depth=2"])
    assert (cfg.seed, cfg.model.net) == (3, {"width": 4, "depth": 2})
    with pytest.raises(ConfigError, match=r"^sed=3: unknown key; see .*/run/.hydra/config.yaml$"):
        saved_config(run, ["sed=3"])
    with pytest.raises(ConfigError, match=r"^model=mlp: a group can't be chosen anew; set values inside it, model.NAME=VALUE$"):
        saved_config(run, ["model=mlp"])


def test_a_run_that_was_not_tested_can_be_evaluated(tmp_path: Path, compose: Callable[..., DictConfig]) -> None:
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    OmegaConf.save(compose("trainer=cpu", "test=false", f"run_dir={tmp_path}"), tmp_path / "run" / ".hydra" / "config.yaml")
    cfg, _ = validated(config_to_evaluate(tmp_path / "run", [], "evaluations"))
    assert cfg.test
