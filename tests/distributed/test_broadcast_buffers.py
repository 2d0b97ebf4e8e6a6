"""Before each step DDP sends rank zero's buffers where processes may have others, and nothing where they can't."""

from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import prepared
from lightning import Callback
from ranks import in_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

OPTIONS = (
    "trainer.devices=2",
    "model=cnn",
    "model.net.width=2",
    "trainer.max_epochs=1",
    "test=false",
)
FLAG = "forward_sync_buffers" if "forward_sync_buffers" in signature(DistributedDataParallel).parameters else "broadcast_buffers"


class Sends(Callback):
    """Would DDP send buffers before the step, and what are those of BatchNorm after it."""

    def __init__(self) -> None:
        self.sends: list[bool] = []
        self.means: list[Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.sends.append(trainer.strategy.model.will_sync_module_buffers())
        self.means += [layer.running_mean.clone() for layer in pl_module.modules() if isinstance(layer, nn.BatchNorm2d)]


def check_all(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    given = {"synchronised": (), "own": ("trainer.sync_batchnorm=false",), "asked": (f"+trainer.strategy.{FLAG}=true",)}
    seen: dict[str, Any] = {}
    for name, options in given.items():
        datamodule, model, trainer = prepared(folder / name, *OPTIONS, *options)
        trainer.callbacks.append(sends := Sends())  # pyright: ignore[reportAttributeAccessIssue]
        trainer.fit(model, datamodule)
        seen[name] = {"sends": sends.sends, "means": torch.cat(sends.means)}
    return seen


@pytest.mark.slow
def test_synchronised_batchnorm_needs_no_broadcast(tmp_path: Path) -> None:
    one, other = in_ranks(2, partial(check_all, folder=tmp_path), tmp_path)
    assert one["synchronised"]["sends"] == [False] * 2
    assert one["own"]["sends"] == one["asked"]["sends"] == [True] * 2
    for name in ("synchronised", "asked"):  # the same bits on both, sent or not
        assert torch.equal(one[name]["means"], other[name]["means"])
        assert torch.equal(one[name]["means"], one["synchronised"]["means"])
    assert not torch.equal(one["own"]["means"], other["own"]["means"])  # after a step, until the next one begins
