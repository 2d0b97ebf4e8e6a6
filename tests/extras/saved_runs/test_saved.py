"""A run directory opened again: what of it is read, and what is refused in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from evaluate import _compose_evaluation
from omegaconf import DictConfig, OmegaConf

from lockstep.console import show_result
from lockstep.errors import ConfigError
from lockstep.extras.saved_runs.saved import config_to_evaluate, saved_config
from lockstep.runs.validation import validated


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    content = OmegaConf.create({"model": {"net": {"width": 8}}, "seed": 3, "run_dir": "x"})
    OmegaConf.save(content, tmp_path / "run" / ".hydra" / "config.yaml")
    return tmp_path / "run"


def test_a_config_that_is_not_whole_is_one_line(run: Path) -> None:
    path = run / ".hydra" / "config.yaml"
    whole = path.read_bytes()
    assert saved_config(run, []).seed == 3
    for damaged in (b"", whole[: len(whole) // 2], whole + b"\n: [", b"\xff\xfe", b"- 1\n", b"just text", b"a: ${\nrun_dir: x\n"):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError) as refused:
            saved_config(run, [])
        assert str(refused.value).startswith(f"RUN_DIR={run}: .hydra/config.yaml is damaged (")
        assert "\n" not in str(refused.value)


def test_a_run_that_was_not_tested_can_be_evaluated(tmp_path: Path, compose: Callable[..., DictConfig]) -> None:
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    OmegaConf.save(compose("trainer=cpu", "test=false", f"run_dir={tmp_path}"), tmp_path / "run" / ".hydra" / "config.yaml")
    cfg, _ = validated(_compose_evaluation(tmp_path / "run", []))
    assert cfg.optimized_metric == "test/acc"


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
    assert "evaluate.py" not in capsys.readouterr().out  # there is no checkpoint
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "best.ckpt").touch()
    show_result(run, result)
    assert capsys.readouterr().out.endswith(f"scripts/evaluate.py {run}\n") is has_test
