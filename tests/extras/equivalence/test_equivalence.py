"""What keeps several processes from giving the result of one is said, and nothing else."""

from types import SimpleNamespace
from typing import Any

import pytest
from in_process import BARE, prepared
from lightning import LightningModule
from torch import Tensor, nn
from unwatched import unwatched

from lockstep.extras.equivalence.equivalence import EquivalenceReport
from lockstep.trainer.batchnorm import synchronise_batchnorm

NOTHING: tuple[str, ...] = ()


def causes(**parts: Any) -> list[str]:
    """Of a plain module on two processes; `parts` are attributes of the trainer, `net` the module's, `shares` that of a batch."""
    module = LightningModule()
    module.net = parts.pop("net", nn.Identity())
    shares = {"rank": 0, "num_replicas": parts.pop("shares", 2)}
    trainer: Any = SimpleNamespace(
        distributed_sampler_kwargs=shares,
        **{"world_size": 2, "callbacks": [], "strategy": None, "precision": "32-true", "datamodule": None} | parts,
    )
    report = EquivalenceReport()
    report.on_fit_start(trainer, module)
    return report.causes


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("trainer.devices=1",), NOTHING),
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
    report.on_fit_start(trainer, model)
    assert len(report.causes) == len(said)
    for cause, words in zip(report.causes, said, strict=True):
        assert cause.startswith(words)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Dropout(0.1), "noise drawn by each process (lockstep.nets.Dropout derives it from the sample): net.0 (Dropout)"),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), "noise drawn"),
        (nn.InstanceNorm2d(2, track_running_stats=True), "running statistics of each process's own samples"),
        (nn.Dropout(0.0), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_layer(layer: nn.Module, words: str | None) -> None:
    result = [cause for cause in causes(net=nn.Sequential(layer)) if cause.startswith(words or ("noise", "running"))]
    assert len(result) == (words is not None)


def test_a_batchnorm_that_is_not_synchronised() -> None:
    class Centred(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return input - input.mean(dim=(0, 2, 3), keepdim=True)

    net = nn.ModuleList([Centred(2), nn.BatchNorm2d(2), nn.LazyBatchNorm1d(), nn.SyncBatchNorm(2)])
    synchronise_batchnorm(net)
    (cause,) = [cause for cause in causes(net=net) if "BatchNorm" in cause or "batchnorm" in cause]
    why = "BatchNorm by a forward of its own, which is not synchronised: each process's own samples, in "
    assert cause == f"{why}net.0 (Centred)"


def test_it_never_ends_a_run() -> None:
    assert unwatched(EquivalenceReport) == []
