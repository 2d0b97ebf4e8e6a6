"""What keeps several processes from giving the result of one is said, and nothing else."""

from types import SimpleNamespace
from typing import Any

import pytest
from in_process import BARE, prepared
from lightning import LightningModule
from torch import nn
from unwatched import unwatched

from lockstep.extras.equivalence import EquivalenceReport
from lockstep.nets import Dropout

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


def test_noise_for_parts_of_samples() -> None:
    net = nn.Sequential(Dropout(0.1), Dropout(0.0))
    assert causes(net=net) == []
    assert causes(net=net, shares=1) == ["noise is drawn for parts of samples, in net.0"]


def test_it_never_ends_a_run() -> None:
    assert unwatched(EquivalenceReport) == []
