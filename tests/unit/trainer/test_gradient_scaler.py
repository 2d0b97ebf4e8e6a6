"""16-mixed precision: gradients are scaled, unscaled before they are clipped, and steps that overflow are left out; resumed too.

Lightning chooses it on GPUs alone. Its plugin and torch's scaler do the same on a CPU, where they are put in by hand.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import KeepAll, last, prepared, trained
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision

SGD = ("model/optimizer=sgd", "model.optimizer.lr=1.0", "model.optimizer.momentum=0.0", "model.optimizer.weight_decay=0.0")


class Steps(Callback):
    """All weights as one vector, before the first step and after each, and the scale then."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []
        self.scales: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._note(trainer, pl_module)

    def _note(self, trainer: Any, model: LightningModule) -> None:
        self.weights.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone())
        if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
            self.scales.append(scaler.get_scale())

    def update(self, number: int) -> torch.Tensor:
        return self.weights[number + 1] - self.weights[number]


def scaled(run_dir: Path, *overrides: str, scale: float, extra: list[Callback], ckpt_path: Path | None = None) -> dict[str, Any]:
    datamodule, model, trainer = prepared(run_dir, *overrides, extra=extra, ckpt_path=ckpt_path)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    trainer.strategy.precision_plugin = MixedPrecision("16-mixed", "cpu", scaler)
    trainer.fit(model, datamodule, ckpt_path=ckpt_path)
    return last(run_dir)


@pytest.mark.parametrize("clip", [(), ("trainer.gradient_clip_val=0.01",)], ids=["as it is", "clipped"])
def test_accumulated_and_clipped_gradients_are_those_of_full_precision(clip: tuple[str, ...], tmp_path: Path) -> None:
    options = (*SGD, *clip, "trainer.accumulate_grad_batches=2", "trainer.max_steps=1", "callbacks.best_checkpoint=null")
    own, other = Steps(), Steps()
    scaled(tmp_path / "scaled", *options, scale=2.0**10, extra=[own])
    trained(tmp_path / "full", *options, extra=[other])
    assert len(own.weights) == len(other.weights) == 3  # a step of two batches
    assert torch.equal(own.weights[0], own.weights[1])
    difference = (own.update(1) - other.update(1)).norm() / other.update(1).norm()
    assert 0 < difference < 5e-3  # of half precision's rounding
    if clip:
        assert own.update(1).norm() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # before the first step that is not left out
def test_a_step_that_overflows_is_left_out_and_a_resumed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    options = ("trainer.max_epochs=2", "trainer.gradient_clip_val=1.0")
    steps = Steps()
    whole = scaled(tmp_path / "whole", *options, scale=2.0**26, extra=[KeepAll(tmp_path), steps])
    halved = [after < before for before, after in zip(steps.scales, steps.scales[1:], strict=False)]
    assert halved[0]
    assert not all(halved)
    assert [bool(steps.update(number).any()) for number in range(8)] == [not skipped for skipped in halved]
    assert whole["MixedPrecision"]["scale"] == steps.scales[-1]
    resumed = scaled(tmp_path / "resumed", *options, scale=2.0**26, extra=[], ckpt_path=tmp_path / "5.ckpt")
    assert not differences(whole | {"callbacks": None}, resumed | {"callbacks": None})
