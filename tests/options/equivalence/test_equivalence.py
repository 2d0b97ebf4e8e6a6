"""What keeps several processes from giving the result of one is said, and nothing else."""

from typing import Any

import pytest
import torch
from in_process import BARE, prepared
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

from lockstep.callbacks.equivalence import EquivalenceReport, metrics_of_batches

NOTHING: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("trainer.devices=2", "model.net.dropout=0.1"), NOTHING),
        (
            ("trainer.devices=2", "trainer.accumulate_grad_batches=3", "datamodule.batch_size=64"),
            ("datamodule.batch_size=64 is per process: a step has 384 samples, and on one process 192;",),
        ),
        (
            ("trainer.devices=2", "model=cnn", "trainer.sync_batchnorm=false"),
            ("trainer.sync_batchnorm=false: each process normalises by its own samples, in net.features.0.1, net.features.1.1",),
        ),
        (("trainer.devices=2", "model=cnn"), NOTHING),
    ],
)
def test_a_composed_run(overrides: tuple[str, ...], said: tuple[str, ...], tmp_path: Any) -> None:
    datamodule, model, trainer = prepared(tmp_path, "callbacks={}", *overrides, base=BARE[:3])
    datamodule.trainer, trainer.datamodule = trainer, datamodule
    report = next(callback for callback in trainer.callbacks if isinstance(callback, EquivalenceReport))
    for callback in trainer.callbacks:
        if isinstance(callback, LambdaCallback):  # which synchronises BatchNorm
            callback.setup(trainer, model, stage="fit")
    report.on_fit_start(trainer, model)
    assert len(report.causes) == len(said)
    for cause, words in zip(report.causes, said, strict=True):
        assert cause.startswith(words)


class OfBatches(SumMetric):
    """As a mean average precision of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("batches", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, value: Any) -> None:
        super().update(value)
        self.batches += 1  # pyright: ignore


def test_a_metric_that_is_a_mean_of_batches_is_named() -> None:
    metrics = [MeanMetric(), MeanMetric(), OfBatches(), SumMetric(), MulticlassAccuracy(2, average="micro")]
    for _ in range(3):
        for metric, value in zip(metrics, (0.25, torch.rand(4), 0.5, 1.0), strict=False):
            metric.update(value)
        metrics[4].update(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 0, 0]))
    assert metrics_of_batches(nn.ModuleList(metrics)) == ["0 (MeanMetric)", "2 (OfBatches)"]
