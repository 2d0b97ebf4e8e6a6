"""What a config's targets take, what they refuse, and under which key."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from omegaconf import DictConfig
from torch import nn

from lockstep.build import build
from lockstep.config.construct import construct
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError


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
