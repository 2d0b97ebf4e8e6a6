"""A run directory opened again: what of it is read, and what is refused in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from lockstep.console import show_result
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


def test_callbacks_that_the_command_names_are_called_and_no_others(tmp_path: Path, compose: Callable[..., DictConfig]) -> None:
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(compose("+callbacks.a={_target_: x.A, b: 1}", run_dir=tmp_path), tmp_path / ".hydra" / "config.yaml")
    assert set(config_to_evaluate(tmp_path, [], "predictions").callbacks) == {"progress"}
    named = ["callbacks.a.b=2", "+callbacks.writer={_target_: x.Writer}", "test=true"]
    callbacks = config_to_evaluate(tmp_path, named, "predictions").callbacks
    assert callbacks.a.b == 2
    assert set(callbacks) == {"progress", "a", "writer"}


@pytest.mark.parametrize("has_test", [True, False])
def test_a_run_that_can_be_tested_says_by_which_command(has_test: bool, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = {"metrics": {}, "wall_time": 1.0, "world_size": 1, "train_time": 1.0, "has_test": has_test}
    show_result(run, result)
    assert "lockstep evaluate" not in capsys.readouterr().out  # there is no checkpoint
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "best.ckpt").touch()
    show_result(run, result)
    assert capsys.readouterr().out.endswith(f"lockstep evaluate {run}\n") is has_test
