"""TF32 is a choice, and said where there is one."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import LightningModule

from lockstep.extras.profiling.tf32 import TF32


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def on(device: str, **choices: bool) -> None:
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)))
    TF32(**choices).setup(trainer, LightningModule(), "fit")


@pytest.mark.parametrize("convolutions", [False, True])
def test_it_is_set_as_chosen(convolutions: bool) -> None:
    on("cpu", matrices=True, convolutions=convolutions)
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32 is convolutions


@pytest.mark.parametrize(("capability", "is_said"), [((7, 5), False), ((8, 0), True)])
def test_it_is_said_on_gpus_that_have_it(
    capability: tuple[int, int], is_said: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    on("cuda", matrices=False, convolutions=True)
    line = "float32 on this GPU: products of matrices in float32, convolutions in TF32 (callbacks.tf32)"
    assert (line in caplog.text) is is_said
