"""What a config's targets take, what they refuse, and under which key."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.data import _update_dataloader
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

from lockstep.build import build
from lockstep.config.arguments import fits, words
from lockstep.config.construct import construct, refused_by_lightning
from lockstep.config.plan import Plan
from lockstep.config.targets import resolve
from lockstep.datamodules import DataSpec
from lockstep.errors import ConfigError

NO_TARGET = {"count": 1}


class Typed:
    """Of which a config can give every argument."""

    def __init__(
        self,
        count: int,
        rate: float = 0.5,
        mode: Literal["min", "max"] = "min",
        sizes: Sequence[int] = (),
        name: str | None = None,
        **others: Any,
    ) -> None:
        if count > 100:
            raise ValueError(f"Invalid count value: {count}")
        if others:
            Closed(**others)
        self.values = (count, rate, mode, list(sizes), name)


class Closed:
    def __init__(self, width: int = 1) -> None:
        self.broken = [][width - 1] if width == 1 else width


class Derived(Typed):
    def __init__(self, extra: bool = False, **typed: Any) -> None:
        super().__init__(**typed)


def node(name: str, /, **values: Any) -> dict[str, Any]:
    return {"_target_": f"{__name__}.{name}", **values}


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        ("Typed", {"count": "x"}, "part.count=x: accepted is an integer"),
        ("Typed", {"count": True}, "part.count=true: accepted is an integer"),
        ("Typed", {"count": None}, "part.count=null: accepted is an integer"),
        ("Typed", {"count": 1, "rate": float("nan")}, "part.rate=nan: accepted is a number"),
        ("Typed", {"count": 1, "mode": "up"}, "part.mode=up: accepted is min, max"),
        ("Typed", {"count": 1, "sizes": 5}, "part.sizes=5: accepted is a list of integers"),
        ("Typed", {"count": 1, "sizes": "5"}, "part.sizes='5': accepted is a list of integers"),
        ("Typed", {"count": 1, "sizes": [1, "x"]}, "part.sizes=[1, x]: accepted is a list of integers"),
        ("Typed", {"count": 1, "name": 5}, "part.name=5: accepted is text, or null"),
        ("Typed", {"count": 101}, "part.count=101: Invalid count value: 101"),
        ("Typed", {}, "part.count=???: a value is required"),
        ("Typed", {"count": 1, "foo": 2}, "part.foo=2: no such argument; accepted are count, rate, mode, sizes, name"),
        ("Derived", {"extra": 1, "count": 1}, "part.extra=1: accepted is true or false"),
        ("Derived", {"extra": True}, "part.count=???: a value is required by "),
        ("Derived", {"count": "x"}, "part.count=x: accepted is an integer"),
        ("Closed", {"foo": 1}, "part.foo=1: no such argument; accepted are width"),
        ("Nothing", {}, rf"part._target_={__name__}.Nothing: "),
        ("NO_TARGET", {}, rf"part._target_={__name__}.NO_TARGET: "),
        ("Typed", {"count": 1, "_partial_": 5}, "part._partial_=5: accepted is true, false"),
        ("Typed", {"_args_": 5}, "part._args_=5: accepted is a list"),
    ],
)
def test_what_a_target_does_not_take_or_refuses_names_the_key(name: str, values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        construct("part", node(name, **values))
    assert str(refused.value).startswith(line)


def test_what_a_target_takes_is_passed_on() -> None:
    assert construct("part", node("Derived", count=3, sizes=[1, 2], mode="max")).values == (3, 0.5, "max", [1, 2], None)
    assert construct("part", node("Typed", _args_=[4, 1])).values[:2] == (4, 1)
    nested = construct("part", {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "torch.nn.Linear", "_args_": [2, 3]}]})
    assert isinstance(nested[0], nn.Linear)
    assert construct("part", node("Closed"), {"width": 5, "unknown": 1}).broken == 5


def test_a_bug_inside_a_target_keeps_its_traceback() -> None:
    with pytest.raises(IndexError):
        construct("part", node("Closed"))


def test_a_target_called_later_refuses_under_its_key() -> None:
    later = construct("model.optimizer", {"_target_": "torch.optim.AdamW", "_partial_": True, "betas": [2, 2]})
    with pytest.raises(ConfigError, match=r"^model\.optimizer\.betas=\[2, 2\]: Invalid beta parameter at index 0: 2$"):
        later([nn.Parameter(torch.zeros(1))])


def test_a_target_called_later_lacks_nothing() -> None:
    later = construct("part", node("Typed", _partial_=True, rate=1.0))
    with pytest.raises(ConfigError, match=r"^part\.count=\?\?\?: a value is required by .*\.Typed$"):
        later(name="x")
    assert later(3).values[:2] == (3, 1.0)


def test_a_bug_in_a_module_of_one_s_own_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        resolve("model.net", "my_broken_module.Net")


@pytest.mark.parametrize(
    ("value", "annotation", "does"),
    [
        (1, float, True),
        (1.0, int, False),
        ([0.9, 0.99], tuple[float, float], True),
        ([0.9], tuple[float, float], False),
        ("gloo", torch.device, True),
        ("logs", str | Path, True),
        ({"a": 1}, str | Path, False),
        (5, torch.device, False),
        (None, nn.Module, False),
        ({"a": 1}, dict[str, int], True),
        ({"a": "x"}, dict[str, int], False),
        ("adam", Callable[..., Any], False),
        ("x", list, False),
        (object(), nn.Module, True),
    ],
)
def test_what_fits_an_annotation(value: Any, annotation: Any, does: bool) -> None:
    assert fits(value, annotation) is does
    assert words(annotation)


def test_what_lightning_refuses_when_it_has_seen_the_data_names_the_key() -> None:
    settings = {"_target_": "lightning.Trainer", "val_check_interval": 3, "max_epochs": -5}
    with pytest.raises(Exception, match="max_epochs") as refused:
        Trainer(**{name: value for name, value in settings.items() if name != "_target_"}, logger=False, accelerator="cpu")
    line = refused_by_lightning(refused.value, settings)
    assert line is not None
    assert str(line).startswith("trainer.max_epochs=-5: ")
    assert refused_by_lightning(ValueError("of one's own"), settings) is None


def test_batches_of_one_s_own_that_lightning_can_not_share_out_are_refused_in_one_line() -> None:
    class Pairs:
        def __iter__(self) -> Any: ...

    loader = DataLoader(range(4), batch_sampler=Pairs())  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="inject") as refused:
        _update_dataloader(loader, SequentialSampler(range(4)))
    line = refused_by_lightning(refused.value, {"_target_": "lightning.Trainer"})
    assert str(line).startswith(
        "trainer=lightning.Trainer: Lightning can't inject a (distributed) sampler into your batch sampler"
    )
    assert "Trainer(use_distributed_sampler=False)" in str(line)


@pytest.mark.filterwarnings("ignore")
def test_what_code_of_one_s_own_asks_of_lightning_keeps_its_traceback(tmp_path: Path) -> None:
    class Careless(LightningModule):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", "no number")

        def configure_optimizers(self) -> None: ...

    trainer = Trainer(logger=False, accelerator="cpu", max_steps=1, default_root_dir=tmp_path, enable_checkpointing=False)
    with pytest.raises(ValueError, match="no number") as raised:
        trainer.fit(Careless(), DataLoader([0]))
    assert refused_by_lightning(raised.value, {"_target_": "lightning.Trainer"}) is None


@pytest.mark.parametrize(
    ("group", "node", "line"),
    [
        (
            "datamodule",
            {"_target_": "lightning.LightningDataModule"},
            "datamodule._target_=lightning.LightningDataModule: has no `spec`",
        ),
        (
            "datamodule",
            {"_target_": "collections.OrderedDict"},
            "datamodule._target_=collections.OrderedDict: accepted is a",
        ),
        ("model", {"_target_": "lockstep.models.Regressor"}, "model._target_=lockstep.models.Regressor: needs a model.net"),
        ("model", {"_target_": "collections.OrderedDict"}, "model._target_=collections.OrderedDict: accepted is a LightningMod"),
    ],
)
def test_what_does_not_fit_together_is_told_what_is_missing(
    group: str, node: dict[str, Any], line: str, shipped: DictConfig
) -> None:
    plan = Plan.from_config(shipped)
    shipped[group] = node
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}"):
        build(shipped, plan)


class Pairs(LightningDataModule):
    """A LightningDataModule as it comes, whose batches are (x, y)."""

    spec = DataSpec((1, 8, 8), 10)

    def train_dataloader(self) -> list[Any]:
        return [[torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.long)]]

    val_dataloader = train_dataloader


def test_batches_that_are_pairs_are_told_what_they_should_be(shipped: DictConfig, tmp_path: Path) -> None:
    plan = Plan.from_config(shipped)
    shipped.datamodule = {"_target_": f"{__name__}.Pairs"}
    shipped.callbacks, shipped.guards, shipped.logger, shipped.run_dir, shipped.test = {}, {}, {}, str(tmp_path), False
    shipped.trainer.enable_progress_bar = False
    datamodule, model, trainer = build(shipped, plan)
    with pytest.raises(ConfigError, match=r"^datamodule=Pairs: yields a list; accepted is a lockstep\.datamodules\.DataModule"):
        trainer.fit(model, datamodule)


def test_an_unknown_argument_of_tensorboard_s_writer_is_refused_before_it_writes(shipped: DictConfig, tmp_path: Path) -> None:
    OmegaConf.update(shipped, "logger.tensorboard.no_such_argument", 1, force_add=True)
    shipped.run_dir = str(tmp_path)
    with pytest.raises(ConfigError, match=r"^logger\.tensorboard\.no_such_argument=1: .* accepted are log_dir, "):
        build(shipped, Plan.from_config(shipped))


def test_an_unknown_argument_of_ddp_is_refused_on_one_process_too(shipped: DictConfig) -> None:
    OmegaConf.update(shipped, "trainer.strategy.no_such_argument", 1, force_add=True)
    with pytest.raises(ConfigError, match=r"^trainer\.strategy\.no_such_argument=1: no such argument; accepted are "):
        build(shipped, Plan.from_config(shipped))
