"""What is unfrozen later, by several processes: DDP averages its gradients from its epoch on, as one process has them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import become_rank, prepared
from lightning import Callback
from ranks import in_ranks
from torch import Tensor

pytestmark = pytest.mark.slow
LATE = "net.layers.1"  # is trained from the second epoch on
OPTIONS = ("model=mlp", "trainer.precision=64-true", "trainer.max_epochs=2", "callbacks=freeze", f"callbacks.freeze.match={LATE}")
SCHEDULE = f"callbacks.freeze.unfreeze={{1: {LATE}}}"


class AfterEpochs(Callback):
    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.states.append({name: parameter.detach().clone() for name, parameter in pl_module.named_parameters()})


def states(folder: Path, *options: str) -> list[dict[str, Tensor]]:
    """At the start and after each of two epochs of global batches of 300."""
    after = AfterEpochs()
    datamodule, model, trainer = prepared(folder, *OPTIONS, SCHEDULE, *options, extra=[after])
    trainer.fit(model, datamodule)
    return after.states


def train_rank(rank: int, world_size: int, folder: Path) -> list[dict[str, Tensor]]:
    become_rank(rank, world_size)
    return states(folder, f"trainer.devices={world_size}", "datamodule.batch_size=150")


def test_two_processes_unfreeze_as_one_does(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    ranks = in_ranks(2, partial(train_rank, folder=tmp_path / "ranks"), tmp_path)
    start, first, second = states(tmp_path / "one")
    late = {name for name in start if name.startswith(LATE)}
    assert late
    for rank in ranks:
        assert {name for name in start if torch.equal(rank[0][name], rank[1][name])} == late
        assert not [name for name in start if torch.equal(rank[1][name], rank[2][name])]
        for expected, result in zip((start, first, second), rank, strict=True):
            assert all(torch.allclose(result[name], expected[name], rtol=1e-9, atol=1e-12) for name in start)
    assert all(torch.equal(ranks[0][2][name], ranks[1][2][name]) for name in start)
