"""Causes that keep several processes from the result of one are reported, and so is where each rank is; ranks have one config."""

import os
import platform
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bitwise import differences
from commands import status
from in_process import BARE, prepared, trained
from lightning.pytorch.callbacks import LambdaCallback
from omegaconf import OmegaConf
from ranks import in_ranks
from torch import nn
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

from lockstep.callbacks.equivalence import EquivalenceReport, metrics_of_batches
from lockstep.callbacks.ranks import Ranks
from lockstep.errors import ConfigError
from lockstep.runs.record import write_status

COMPOSED = [
    (("model.net.dropout=0.1",), None),
    (("model=cnn",), None),
    (
        ("trainer.accumulate_grad_batches=3", "datamodule.batch_size=64"),
        "datamodule.batch_size=64 is per process: a step has 384 samples, and on one process 192;",
    ),
    (
        ("model=cnn", "trainer.sync_batchnorm=false"),
        "trainer.sync_batchnorm=false: each process normalises by its own samples, in net.features.0.1, net.features.1.1",
    ),
]


@pytest.mark.parametrize(("overrides", "said"), COMPOSED)
def test_a_composed_run(overrides: tuple[str, ...], said: str | None, tmp_path: Any) -> None:
    datamodule, model, trainer = prepared(tmp_path, "callbacks={}", "trainer.devices=2", *overrides, base=BARE[:3])
    datamodule.trainer, trainer.datamodule = trainer, datamodule
    report = next(callback for callback in trainer.callbacks if isinstance(callback, EquivalenceReport))
    for callback in trainer.callbacks:
        if isinstance(callback, LambdaCallback):  # which synchronises BatchNorm
            callback.setup(trainer, model, stage="fit")
    report.on_fit_start(trainer, model)
    assert [cause[: len(said or "")] for cause in report.causes] == ([] if said is None else [said])


class OfBatches(MeanMetric):
    """A metric of the user's own, as a mean average precision of each batch."""


def test_a_metric_that_is_a_mean_of_batches_is_named() -> None:
    metrics = [MeanMetric(), MeanMetric(), OfBatches(), SumMetric(), MulticlassAccuracy(2, average="micro")]
    for _ in range(3):
        for metric, value in zip(metrics, (0.25, torch.rand(4), 0.5, 1.0), strict=False):
            metric.update(value)
        metrics[4].update(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 0, 0]))
    assert metrics_of_batches(nn.ModuleList(metrics)) == ["0 (MeanMetric)", "2 (OfBatches)"]


OPTIONS = ("trainer.devices=2", "datamodule.batch_size=150", "trainer.max_epochs=1", "trainer/communication=bf16")


def compressed(rank: int, world_size: int, folder: Path) -> tuple[dict[str, Any], list[str]]:
    saved, trainer = trained(folder, *OPTIONS)
    callbacks: list[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    return saved["state_dict"], next(callback.causes for callback in callbacks if isinstance(callback, EquivalenceReport))


@pytest.mark.slow
def test_gradients_in_fewer_bits_are_the_same_in_all_processes_and_are_said(tmp_path: Path) -> None:
    one, other = in_ranks(2, partial(compressed, folder=tmp_path), tmp_path)
    assert differences(one, other) == []
    assert "trainer.strategy.communication=bf16: gradients are sent in fewer bits" in one[1]


def note(rank: int, world_size: int, run: Path, **config: Any) -> int:
    trainer: Any = SimpleNamespace(world_size=world_size, is_global_zero=rank == 0, global_rank=rank, default_root_dir=str(run))
    Ranks(OmegaConf.create(config)).setup(trainer, None, "fit")
    return os.getpid()


def refusal(rank: int, world_size: int, run: Path, configs: list[dict[str, Any]]) -> str | None:
    try:
        note(rank, world_size, run, **configs[rank])
    except ConfigError as error:
        return str(error)
    return None


def test_every_rank_s_host_and_process_are_recorded_while_it_runs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_status(run, "running", is_first=True)
    pids = in_ranks(2, partial(note, run=run), tmp_path)
    assert status(run)["ranks"] == [{"rank": k, "host": platform.node(), "pid": pid} for k, pid in enumerate(pids)]
    assert status(run)["status"] == "running"
    write_status(run, "failed", "rank 1 was killed by SIGKILL", 1)
    note(0, 1, run)  # too late
    assert "ranks" not in status(run)


def test_ranks_of_several_configs_are_refused_in_each_of_them_before_they_train(tmp_path: Path) -> None:
    here, there = ({"datamodule": {"data_dir": f"/{host}/data", "num_workers": host}} for host in (1, 2))
    one, other = ({"model": {"lr": lr}, "seed": 0} for lr in (0.1, 0.5))
    assert in_ranks(2, partial(refusal, run=tmp_path, configs=[one | here, one | there]), tmp_path) == [None, None]
    line = "model.lr=0.1: is 0.5 in rank 1; start all ranks with the same config"
    assert in_ranks(2, partial(refusal, run=tmp_path, configs=[one, other]), tmp_path) == [line, line]
