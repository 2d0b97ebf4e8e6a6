"""What does not go with a way to communicate."""

from collections.abc import Callable

import pytest
from omegaconf import DictConfig
from refusals import refusal, validate


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer.precision=16-mixed", "trainer.precision=16-mixed: does not go with PowerSGD; accepted is bf16-mixed, 32-true"),
        ("guards.nonfinite.action=skip", "guards.nonfinite.action=skip: PowerSGD carries a NaN into all later steps"),
        ("trainer.strategy.communication.start=1", "trainer.strategy.communication.start=1: accepted is an integer of at"),
        ("trainer.strategy.communication.hook=fp8", "trainer.strategy.communication.hook=fp8: accepted is fp16, bf16, power_sgd"),
    ],
)
def test_what_does_not_go_with_power_sgd_is_named(override: str, line: str, compose: Callable[..., DictConfig]) -> None:
    assert refusal(compose("trainer/communication=power_sgd", override)).startswith(line)


@pytest.mark.parametrize("override", ["trainer.precision=16-mixed", "guards.nonfinite.action=skip"])
def test_half_precision_goes_with_both(override: str, compose: Callable[..., DictConfig]) -> None:
    validate(compose("trainer/communication=fp16", override))
