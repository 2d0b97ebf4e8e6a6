"""What does not go with a way to communicate."""

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.errors import ConfigError
from lockstep.extras.compression.strategy import CommunicatingDDP
from lockstep.extras.nonfinite import NonFinite

POWER_SGD = {"hook": "power_sgd", "rank": 1, "start": 2, "seed": 0}


def strategy(**communication: Any) -> Any:
    return CommunicatingDDP(world_size=2, timeout=9, process_group_backend="gloo", communication=communication)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"start": 1}, "communication.start=1: is less than 2; use at least 2"),
        ({"hook": "fp8"}, "communication.hook=fp8: is not a hook; use fp16, bf16, power_sgd"),
    ],
)
def test_what_is_no_way_to_communicate_is_refused(change: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=f"^{line}$"):
        strategy(**POWER_SGD | change)


def test_what_does_not_go_with_power_sgd_is_named() -> None:
    powerful = strategy(**POWER_SGD)
    powerful._lightning_module = SimpleNamespace(trainer=SimpleNamespace(callbacks=[NonFinite(action="skip")]))
    with pytest.raises(ConfigError, match=r"^guards\.nonfinite\.action=skip: PowerSGD carries a NaN into all later steps"):
        powerful.register(None)
    powerful._precision_plugin = SimpleNamespace(precision="16-mixed", scaler=object())
    with pytest.raises(ConfigError, match=r"^trainer\.precision=16-mixed: does not go with PowerSGD; use bf16-mixed"):
        powerful.register(None)
