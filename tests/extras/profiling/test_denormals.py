"""Denormal numbers are taken for zero while a run lasts, and no longer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import prepared
from lightning import Callback

from lockstep.errors import ConfigError

_HALF = 2.0**-127  # of the smallest normal number of float32


class Halves(Callback):
    """Notes half of the smallest normal number as it comes out of torch in training."""

    seen = float("nan")

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen = float(torch.tensor(2.0**-126) * 0.5)


@pytest.mark.parametrize(("options", "expected"), [((), _HALF), (("callbacks=flush_denormal",), 0.0)])
def test_denormal_numbers_are_zero_in_training(options: tuple[str, ...], expected: float, tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, "trainer.max_steps=1", "trainer.limit_val_batches=1", *options)
    halves = Halves()
    trainer.callbacks.append(halves)
    trainer.fit(model, datamodule)
    assert halves.seen == expected
    assert float(torch.tensor(2.0**-126) * 0.5) == _HALF


def test_a_processor_that_can_not_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datamodule, model, trainer = prepared(tmp_path, "callbacks=flush_denormal")
    monkeypatch.setattr(torch, "set_flush_denormal", lambda mode: not mode)
    with pytest.raises(ConfigError, match="callbacks=flush_denormal: this processor can't"):
        trainer.fit(model, datamodule)
