"""Buffers that DDP sends before each step."""

from inspect import signature
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.models.supervised import Preprocess
from lockstep.strategies.ddp import DDP
from lockstep.trainer.batchnorm import synchronise_batchnorm

FLAG = "forward_sync_buffers" if "forward_sync_buffers" in signature(DistributedDataParallel).parameters else "broadcast_buffers"


class Counting(nn.BatchNorm1d):
    """With a buffer of its own, of which nobody knows."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_buffer("seen", torch.zeros(()))


class OwnForward(nn.BatchNorm1d):
    """May compute statistics in its own way."""

    def forward(self, input: Tensor) -> Tensor:
        return (input - input.mean(0)) / input.std(0)


@pytest.mark.parametrize(
    ("layer", "is_synchronised", "is_sent", "asked"),
    [
        (nn.Identity(), False, False, {}),
        (nn.BatchNorm1d(4), True, False, {}),
        (nn.BatchNorm1d(4), False, True, {}),  # each process has statistics of its own, and DDP keeps rank zero's
        (Counting(4), True, True, {}),
        (OwnForward(4), True, True, {}),
        (nn.BatchNorm1d(4), True, True, {FLAG: True}),
    ],
)
@pytest.mark.usefixtures("no_process_group")
def test_buffers_are_sent_before_a_step_unless_all_processes_have_the_same(
    layer: nn.Module, is_synchronised: bool, is_sent: bool, asked: dict[str, bool]
) -> None:
    model = LightningModule()
    model.layers = nn.Sequential(Preprocess((4,)), nn.Linear(4, 4), layer)
    if is_synchronised:
        synchronise_batchnorm(model)
    strategy = DDP(world_size=1, timeout=60, process_group_backend="gloo", **asked)
    strategy.parallel_devices, strategy.model = [torch.device("cpu")], model
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        strategy.configure_ddp()
        wrapped: Any = strategy.model
        assert wrapped.will_sync_module_buffers() == is_sent
    finally:
        dist.destroy_process_group()
