"""What a run on one machine opens to the network: nothing beyond the loopback."""

from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.launchers.environment import PARENT_PID, reserved_port, this_rank
from lockstep.models.supervised import Preprocess
from lockstep.strategies.ddp import DDP, _store_on_loopback
from lockstep.trainer.batchnorm import synchronise_batchnorm

FLAG = "forward_sync_buffers" if "forward_sync_buffers" in signature(DistributedDataParallel).parameters else "broadcast_buffers"


def listening() -> set[str]:
    """The ADDRESS:PORT this process listens on, as /proc/net has them: hexadecimal, IPv4 in the machine's order."""
    inodes = {file.stat().st_ino for file in Path("/proc/self/fd").iterdir() if file.exists()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and int(row[9]) in inodes}


@pytest.fixture
def _rank_zero(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with reserved_port() as port:
        variables = {PARENT_PID: "-1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        for name, value in (variables | {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}).items():
            monkeypatch.setenv(name, value)
        this_rank.cache_clear()
        yield
        this_rank.cache_clear()


@pytest.mark.usefixtures("_rank_zero", "no_process_group")
def test_a_local_run_listens_on_the_loopback_alone() -> None:
    before = listening()
    store = _store_on_loopback()
    dist.init_process_group("gloo")  # as Lightning does
    del store
    try:
        dist.barrier()
        assert {place.partition(":")[0] for place in listening() - before} == {"0100007F"}
    finally:
        dist.destroy_process_group()


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
@pytest.mark.usefixtures("_rank_zero", "no_process_group")
def test_buffers_are_sent_before_a_step_unless_all_processes_have_the_same(
    layer: nn.Module, is_synchronised: bool, is_sent: bool, asked: dict[str, bool]
) -> None:
    model = LightningModule()
    model.layers = nn.Sequential(Preprocess((4,)), nn.Linear(4, 4), layer)
    if is_synchronised:
        synchronise_batchnorm(model)
    strategy = DDP(world_size=1, timeout=60, process_group_backend="gloo", **asked)
    strategy.parallel_devices, strategy.model = [torch.device("cpu")], model
    dist.init_process_group("gloo")
    try:
        strategy.configure_ddp()
        wrapped: Any = strategy.model
        assert wrapped.will_sync_module_buffers() == is_sent
    finally:
        dist.destroy_process_group()
