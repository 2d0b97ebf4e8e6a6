"""What does not go with a way to communicate."""

from collections.abc import Callable

import pytest
from capabilities import requires
from omegaconf import DictConfig
from refusals import refusal, validate


@pytest.mark.parametrize(
    ("communication", "override", "line"),
    [
        (
            "power_sgd",
            "trainer.precision=16-mixed",
            "trainer.precision=16-mixed: has a scaler of gradients, which does not go with",
        ),
        (
            "local_sgd",
            "trainer.precision=16-mixed",
            "trainer.precision=16-mixed: has a scaler of gradients, which does not go with",
        ),
        ("local_sgd", "callbacks=ema", "callbacks.ema="),
        pytest.param(
            *("local_sgd", "guards.nonfinite.action=skip", "guards.nonfinite.action=skip: a process would leave out a step"),
            marks=requires("nonfinite"),
        ),
    ],
)
def test_what_does_not_go_with_a_communication_is_named(
    communication: str, override: str, line: str, compose: Callable[..., DictConfig]
) -> None:
    assert refusal(compose(f"trainer/communication={communication}", override)).startswith(line)
    validate(compose("trainer/communication=fp16", override))
