"""What is unfrozen while a model trains: DDP wraps the model anew, and averages its gradients as one process has them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import KeepAll, become_rank, prepared
from lightning import Callback
from ranks import in_ranks
from unfreezing import Unfreeze

pytestmark = pytest.mark.slow
OPTIONS = ("model=mlp", "trainer.precision=64-true", "trainer.max_epochs=2", "datamodule.global_batch_size=300")
LATE = "net.layers.1.weight"


class WithinAnEpoch(Callback):
    """Before the seventh step; the optimizer has all parameters from the start."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.net.layers[1].requires_grad_(False)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        pl_module.net.layers[1].requires_grad_(trainer.global_step >= 6)


def weights(folder: Path, kind: type[Callback], *options: str, ckpt_path: Path | None = None) -> dict[str, Any]:
    extra = [kind(), *([KeepAll(folder)] if ckpt_path is None else [])]
    datamodule, model, trainer = prepared(folder, *OPTIONS, *options, extra=extra, ckpt_path=ckpt_path)
    trainer.fit(model, datamodule, ckpt_path=ckpt_path)
    assert not trainer.strategy.__dict__.get("frozen")
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def train_rank(rank: int, world_size: int, folder: Path, kind: type[Callback], ckpt_path: Path | None = None) -> dict[str, Any]:
    become_rank(rank, world_size)
    return weights(folder, kind, f"trainer.devices={world_size}", ckpt_path=ckpt_path)


@pytest.mark.parametrize("kind", [Unfreeze, WithinAnEpoch])
def test_two_processes_unfreeze_as_one_does(kind: type[Callback], tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    ranks = in_ranks(2, partial(train_rank, folder=tmp_path / "ranks", kind=kind), tmp_path)
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])
    one = weights(tmp_path / "one", kind)
    for name in one:
        torch.testing.assert_close(ranks[0][name], one[name], rtol=1e-9, atol=1e-12)
    before = weights(tmp_path / "before", kind, "trainer.max_epochs=1")
    assert not torch.equal(before[LATE], one[LATE])


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_two_processes_go_on_with_what_they_had_unfrozen(tmp_path: Path) -> None:
    (folder := tmp_path / "ranks").mkdir()
    whole, _ = in_ranks(2, partial(train_rank, folder=folder, kind=Unfreeze), tmp_path)
    ranks = in_ranks(2, partial(train_rank, folder=folder, kind=Unfreeze, ckpt_path=folder / "7.ckpt"), tmp_path)
    assert all(torch.equal(rank[name], whole[name]) for rank in ranks for name in whole)
