"""Muon where each process holds a shard of a matrix."""

from pathlib import Path

import pytest
import torch
from ranks import in_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from lockstep.extras.muon.optimizer import Muon

pytestmark = pytest.mark.slow
DIVIDED = {  # the dimensions of a mesh of four processes, what each divides, and what is divided
    "rows": ((4,), (Shard(0),), (7, 4)),
    "columns": ((4,), (Shard(1),), (7, 3)),  # the last process has none
    "rows twice": ((2, 2), (Shard(0), Shard(0)), (7, 5)),
    "rows and columns": ((2, 2), (Shard(0), Shard(1)), (7, 5)),
    "filters": ((4,), (Shard(0),), (6, 2, 3, 3)),
}


def steps_of_muon(_: int, __: int) -> dict[str, tuple[int, Tensor, Tensor]]:
    """The collectives of a step, and the weights after two, of sharded matrices and of full ones."""
    result = {}
    for name, (sizes, placements, shape) in DIVIDED.items():
        mesh = init_device_mesh("cpu", sizes)
        weight, gradient = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        plain, parts = nn.Parameter(weight.clone()), nn.Parameter(distribute_tensor(weight, mesh, placements))
        plain.grad, parts.grad = gradient, distribute_tensor(gradient, mesh, placements)
        sharded, full = (Muon([parameter], rest=torch.optim.SGD) for parameter in (parts, plain))
        with CommDebugMode() as counted:
            sharded.step()
        for optimizer in (sharded, full, full):
            optimizer.step()
        result[name] = (counted.get_total_counts(), parts.full_tensor().detach(), plain.detach())
    return result


def test_muon_gathers_a_matrix_once_a_step_for_each_dimension_that_divides_it(tmp_path: Path) -> None:
    for rank in in_ranks(4, steps_of_muon, tmp_path):
        assert {name: collectives for name, (collectives, *_) in rank.items()} == {
            name: len(sizes) for name, (sizes, *_) in DIVIDED.items()
        }
        for name, (_, parts, plain) in rank.items():
            assert torch.equal(parts, plain), name
