"""Metrics that are counted for several batches at once, beside those that each step counts."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from capabilities import requires
from in_process import prepared, trained
from torch import Tensor

from lockstep.checkpointing import read_checkpoint
from lockstep.datamodules import Batch
from lockstep.extras.fast_loop import counts
from lockstep.extras.fast_loop.counts import LaterCounts
from lockstep.models import Classifier

# 60 batches an epoch, the last a smaller one; the last checkpoint but one is of within the second.
OPTIONS = ("datamodule.batch_size=20", "datamodule.drop_last=false", "trainer.max_steps=101")
OPTIONS += ("guards.checkpoint.every_n_steps=50",)


@pytest.mark.parametrize("numbers", [1 << 18, 1 << 11])
def test_the_sums_have_the_bits_of_those_that_each_step_counts(
    numbers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    count = LaterCounts.count

    def noted(self: LaterCounts) -> None:
        counted.append(self._number)
        count(self)

    monkeypatch.setattr(counts, "_BATCHES", 32)
    monkeypatch.setattr(counts, "_NUMBERS", numbers)
    monkeypatch.setattr(LaterCounts, "count", noted)
    trained(tmp_path / "later", *OPTIONS)
    assert max(counted) == min(32, numbers // 200)
    trained(tmp_path / "at_once", *OPTIONS, "events.fast_loop=null")
    for name in ("previous", "last"):
        files = (tmp_path / run / "checkpoints" / f"{name}.ckpt" for run in ("later", "at_once"))
        later, at_once = ({**(read_checkpoint(name, file) or {}), "callbacks": None} for file in files)
        assert (int(later["train_means"]["count"].sum()) > 0) is (name == "previous")
        assert not differences(later, at_once)


class Measures(Classifier):
    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return super().measure(outputs, targets)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("guards.nonfinite.action=skip",), marks=requires("nonfinite")),
        ("trainer.precision=bf16-mixed",),
        ("model.label_smoothing=0.1",),
        (f"model._target_={__name__}.Measures",),
        (),
    ],
)
def test_who_may_look_at_each_step_s_sums_has_them(options: tuple[str, ...], tmp_path: Path) -> None:
    _, model, trainer = prepared(tmp_path, *options)
    trainer.strategy.model = trainer.strategy._lightning_module = model
    LaterCounts.install(trainer)
    assert ("count_values" in vars(model)) is (not options)


def test_batches_without_a_sample_are_counted(tmp_path: Path) -> None:
    _, model, _ = prepared(tmp_path)
    later: Any = LaterCounts(model)
    for samples in (3, 3, 0, 0, 2):
        targets = torch.zeros(samples, dtype=torch.int64)
        batch = Batch(torch.empty(samples, 1), targets, targets, 1.0)
        outputs = torch.eye(10)[:samples]
        later.keep(batch, {"outputs": outputs, "logarithms": outputs.log_softmax(dim=1)})
    later.count()
    means = {name: float(value) for name, value in model.train_means.compute().items()}
    assert means["loss"] == pytest.approx(math.log(math.e + 9) - 3 / 8)  # the first of each batch that has one is right by 1
    assert means["acc"] == 3 / 8
    assert model.samples_trained == int(model.train_means.count) == 8


@pytest.mark.parametrize(("loss_weight", "kind"), [(1 / 7, torch.int64), (2 / 5, torch.int32)])
def test_gradients_have_the_bits_of_a_product_with_the_batch_s_weight(
    loss_weight: float, kind: torch.dtype, tmp_path: Path
) -> None:
    _, model, _ = prepared(tmp_path)
    # the second is left out, as torch does
    later, targets = LaterCounts(model), torch.tensor([3, -100, 9, 0, 3], dtype=kind)
    batch = Batch(torch.rand(5, *model.spec.input_shape), targets, torch.arange(5), loss_weight)
    gradients: list[list[Tensor | None]] = []
    for loss_of in (later.loss_and_outputs, model.loss_and_values):
        model.zero_grad()
        loss, values = loss_of(batch)
        loss.backward()
        if loss_of == later.loss_and_outputs:
            later.keep(batch, values)
            later.count()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert not differences(*gradients)
