"""A stranger's checkpoint runs nothing; what it may name."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from crafted import CHECKPOINTS, SPEC, changed
from omegaconf import DictConfig, OmegaConf

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.models.from_checkpoint import load_model
from lockstep.models.from_config import build_model


def saved(path: Path, model_config: Any) -> Path:
    state = build_model(changed({})).state_dict()
    torch.save({"state_dict": state, "hyper_parameters": model_config}, path)
    return path


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that, were it run or loaded, would leave another one beside it: `ran`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w')\ndef run(*_, **__): open('ran', 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "evil.py"


@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_checkpoint_made_to_run_code_is_refused(how: str, evil: Path) -> None:
    path = saved(evil.with_name("hostile.ckpt"), changed(CHECKPOINTS[how]))
    with pytest.raises(ConfigError, match=rf"^checkpoint={path}: model[\w.]*_target_=") as refused:
        load_model(path)
    assert "\n" not in str(refused.value)
    assert not (evil.parent / "ran").exists()
    assert evil.exists()


@pytest.mark.parametrize("content", [None, {"model": {}, "spec": SPEC}])
def test_a_checkpoint_that_says_nothing_of_its_model_is_refused(content: Any, tmp_path: Path) -> None:
    path = saved(tmp_path / "odd.ckpt", content)
    with pytest.raises(ConfigError, match=rf"^checkpoint={path}: "):
        load_model(path)


def test_a_target_that_an_interpolation_would_make_is_refused(evil: Path) -> None:
    node = "${oc.create:'{_target_: evil.run}'}"
    path = saved(evil.with_name("hostile.ckpt"), changed({"net": {"_target_": "torch.nn.Sequential", "_args_": [node]}}))
    with pytest.raises(ConfigError, match=r"^checkpoint=.*: has an interpolation"):
        load_model(path)
    assert not (evil.parent / "ran").exists()


def test_other_targets_are_built_where_the_caller_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_nets.py").write_text("from lockstep.nets import MLP\nclass Mine(MLP): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = saved(tmp_path / "mine.ckpt", changed({"net._target_": "my_nets.Mine"}))
    with pytest.raises(ConfigError, match=r"model\.net\._target_=my_nets\.Mine: a checkpoint may not name that; use"):
        load_model(path)
    assert type(load_model(path, allow=["my_nets.Mine"]).net).__name__ == "Mine"


def test_a_net_of_the_project_is_there_in_a_script_or_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which have no src/ on Python's path."""
    for folder in ("conf", "src"):
        (tmp_path / folder).mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "src" / "nets_of_mine.py").write_text("from lockstep.nets import MLP\nclass Net(MLP): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = saved(tmp_path / "best.ckpt", changed({"net._target_": "nets_of_mine.Net"}))
    assert type(load_model(path).net).__name__ == "Net"


def test_a_config_that_names_a_shell_is_refused(shipped: DictConfig) -> None:
    OmegaConf.update(shipped, "model.net._target_", "os.system")
    with pytest.raises(ConfigError, match=r"^model.net\._target_=os.system: .*blocklisted"):
        build(shipped, Plan.from_config(shipped))
