"""A stranger's checkpoint runs nothing; what it may name."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from crafted import CHECKPOINTS, MODEL, SPEC, changed
from omegaconf import DictConfig, OmegaConf

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.models.from_checkpoint import _check_part, load_model
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


@pytest.mark.parametrize(
    "content",
    [
        *(None, 5, {}, {"model": 5, "spec": SPEC}, {"model": MODEL}, {"model": {}, "spec": SPEC}),
    ],
)
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


class Pickled:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("open('ran', 'w')",)


@pytest.mark.parametrize(
    "variable", ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1", "HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE=os.system:os:builtins.exec"]
)
def test_variables_open_nothing(variable: str, evil: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable.split("="))
    for content in (Pickled(), changed(CHECKPOINTS["a shell"])):
        with pytest.raises(ConfigError, match=r"^checkpoint=.*hostile.ckpt: "):
            load_model(saved(evil.with_name("hostile.ckpt"), content))
    assert not (evil.parent / "ran").exists()


def project_with_a_net(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a script or a notebook, whose src/ is not on Python's path. Returns a run's checkpoint in it."""
    (folder / "logs").mkdir(parents=True)
    (folder / "conf").mkdir()
    (folder / "src").mkdir()
    (folder / "train.py").touch()
    (folder / "src" / f"nets_of_{folder.name}.py").write_text("from lockstep.nets import MLP\nclass Net(MLP): ...\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "logs" / "run").mkdir()
    return saved(folder / "logs" / "run" / "best.ckpt", changed({"net._target_": f"nets_of_{folder.name}.Net"}))


def test_a_net_of_the_project_is_there_in_a_script_or_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(load_model(project_with_a_net(tmp_path / "mine", monkeypatch)).net).__name__ == "Net"


@pytest.mark.parametrize(
    "path",
    [
        *("lockstep.models.Classifier", "lockstep.nets.MLP", "lockstep.models.schedules.cosine", "torch.nn.Linear"),
        *("torch.optim.AdamW", "torch.optim.lr_scheduler.StepLR", "torchvision.models.resnet18", "torchvision.models.ResNet"),
        *("torchmetrics.F1Score", "torchmetrics.classification.MulticlassF1Score"),
    ],
)
def test_what_models_are_made_of_is_allowed_in_a_checkpoint(path: str) -> None:
    _check_part("model.net", path)


@pytest.mark.parametrize(
    ("key", "target"),
    [("datamodule", "os.system"), ("model.net", "os.system"), ("callbacks.best_checkpoint", "os.popen")],
)
def test_a_config_that_names_a_shell_is_refused(key: str, target: str, shipped: DictConfig, evil: Path) -> None:
    OmegaConf.update(shipped, f"{key}._target_", target)
    with pytest.raises(ConfigError, match=rf"^{key}\._target_={target}: .*blocklisted"):
        build(shipped, Plan.from_config(shipped))
    assert not (evil.parent / "ran").exists()
