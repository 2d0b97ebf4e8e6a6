"""Buffers that DDP sends before each step; tests/distributed/test_exactness.py has those of plain BatchNorm layers."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning import LightningModule
from torch import Tensor, nn

from lockstep.models.supervised import Preprocess
from lockstep.strategies.ddp import DDP
from lockstep.trainer.batchnorm import synchronise_batchnorm


class Counting(nn.BatchNorm1d):
    """A layer with a buffer of its own, of which nobody knows."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_buffer("seen", torch.zeros(()))


class OwnForward(nn.BatchNorm1d):
    """A layer that may compute statistics in its own way."""

    def forward(self, input: Tensor) -> Tensor:
        return (input - input.mean(0)) / input.std(0)


@pytest.mark.parametrize(("layer", "is_sent"), [(nn.Identity(), False), (Counting(4), True), (OwnForward(4), True)])
@pytest.mark.usefixtures("no_process_group")
def test_buffers_are_sent_before_a_step_unless_all_processes_have_the_same(layer: nn.Module, is_sent: bool) -> None:
    model = LightningModule()
    model.layers = nn.Sequential(Preprocess((4,)), nn.Linear(4, 4), layer)
    synchronise_batchnorm(model)
    strategy = DDP(world_size=1, timeout=60, process_group_backend="gloo")
    strategy.parallel_devices, strategy.model = [torch.device("cpu")], model
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        strategy.configure_ddp()
        wrapped: Any = strategy.model
        assert wrapped.will_sync_module_buffers() == is_sent
    finally:
        dist.destroy_process_group()
