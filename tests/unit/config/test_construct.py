"""Arguments that a config's targets take and refuse, and under which key; a stranger's checkpoint runs nothing."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from lockstep.build import build
from lockstep.config.construct import construct
from lockstep.config.plan import Plan
from lockstep.datamodules import DataSpec
from lockstep.errors import ConfigError
from lockstep.models.from_checkpoint import load_model
from lockstep.models.from_config import build_model


class Typed:
    def __init__(self, count: int, mode: Literal["min", "max"] = "min", sizes: Sequence[int] = (), **others: Any) -> None:
        if count > 100:
            raise ValueError(f"count={count}: is above 100; use less")
        if others:
            Closed(**others)
        self.values = (count, mode, list(sizes))


class Closed:
    def __init__(self, width: int = 1) -> None:
        self.broken = [][width - 1] if width == 1 else width


class Outer:
    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Derived(Typed):
    def __init__(self, extra: bool = False, **typed: Any) -> None:
        super().__init__(**typed)


def node(name: str, /, **values: Any) -> dict[str, Any]:
    return {"_target_": f"{__name__}.{name}", **values}


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        ("Typed", {"count": 1, "foo": 2}, "part: Closed.__init__() got an unexpected keyword argument 'foo'"),
        ("Derived", {"count": "many"}, "part.count=many: use a whole number"),
        ("Outer", {"inner": node("Typed", count=101)}, "part.inner.count=101: is above 100; use less"),
    ],
)
def test_what_a_target_does_not_take_or_refuses_names_the_key(name: str, values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        construct("part", node(name, **values))
    assert str(refused.value).startswith(line)


def test_what_a_target_takes_is_passed_on() -> None:
    assert construct("part", node("Derived", count=3, sizes=[1, 2], mode="max")).values == (3, "max", [1, 2])
    nested = construct("part", {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "torch.nn.Linear", "_args_": [2, 3]}]})
    assert isinstance(nested[0], nn.Linear)
    assert construct("part", node("Closed"), {"width": 5, "unknown": 1}).broken == 5


def test_a_bug_inside_a_target_keeps_its_traceback() -> None:
    with pytest.raises(IndexError):
        construct("part", node("Closed"))


def test_a_shipped_model_needs_data_that_describe_themselves(shipped: DictConfig) -> None:
    plan = Plan.from_config(shipped)
    shipped.datamodule = {"_target_": "lightning.LightningDataModule"}
    with pytest.raises(ConfigError, match=r"^model\._target_=lockstep\.models\.Classifier: needs data with a `spec`"):
        build(shipped, plan)


SPEC = {"input_shape": [1, 8, 8], "num_outputs": 10, "class_names": None}
MODEL: dict[str, Any] = {
    "_target_": "lockstep.models.Classifier",
    "net": {"_target_": "lockstep.nets.MLP", "hidden": [4]},
    "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 1e-3},
    "lr_scheduler": {"_target_": "lockstep.models.schedules.constant", "_partial_": True},
    "metrics": ["loss"],
}


def saved(run_dir: Path, config: dict[str, Any], net: str) -> Path:
    """A checkpoint in a run's directory that names this net."""
    for name in (".hydra", "checkpoints"):
        (run_dir / name).mkdir(parents=True)
    OmegaConf.save({"model": config}, run_dir / ".hydra" / "config.yaml")
    content = {"model": MODEL | {"net": {"_target_": net}}, "spec": SPEC}
    path = run_dir / "checkpoints" / "best.ckpt"
    torch.save({"state_dict": build_model(MODEL, DataSpec(**SPEC)).state_dict(), "hyper_parameters": content}, path)
    return path


def test_a_model_is_built_from_its_run_s_config_and_a_checkpoint_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a script or a notebook, which have no src/ on Python's path."""
    for name in ("conf/x", "src/nets_of_mine.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("from lockstep.nets import MLP\nclass Net(MLP): ...\n")
    (tmp_path / "src" / "evil.py").write_text("open('ran', 'w')\n")
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = saved(tmp_path / "run", MODEL | {"net": MODEL["net"] | {"_target_": "nets_of_mine.Net"}}, "evil.run")
    assert type(load_model(path).net).__module__ == "nets_of_mine"
    with pytest.raises(ConfigError, match=r"best\.ckpt: is in no run's directory, whose \.hydra/config\.yaml names its model"):
        load_model(path.rename(tmp_path / "best.ckpt"))
    assert not Path("ran").exists()


def test_a_checkpoint_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "hyper_parameters": None}, path := tmp_path / "odd.ckpt")
    with pytest.raises(ConfigError, match=rf"^checkpoint={path}: does not say the shapes of its data"):
        load_model(path, MODEL)


def test_a_config_that_names_a_shell_is_refused(shipped: DictConfig) -> None:
    OmegaConf.update(shipped, "model.net._target_", "os.system")
    with pytest.raises(ConfigError, match=r"^model.net\._target_=os.system: .*blocklisted"):
        build(shipped, Plan.from_config(shipped))
