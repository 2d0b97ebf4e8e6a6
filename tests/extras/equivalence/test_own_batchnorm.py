"""BatchNorm layers that are not synchronised, since they do not call torch.nn.functional.batch_norm."""

import torch
from torch import Tensor, nn

from lockstep.extras.equivalence.own_batchnorm import takes_own_statistics
from lockstep.trainer.batchnorm import synchronise_batchnorm


class OwnStatistics(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return input - input.mean(dim=(0, 2, 3), keepdim=True)


class Activated(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.relu(super().forward(input))


class Conditional(nn.BatchNorm1d):
    def forward(self, input: Tensor, scale: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(input) * scale


def test_what_its_forward_calls_is_what_counts() -> None:
    """One that can't be tried is not said to have statistics of its own."""
    net = nn.ModuleList(
        [OwnStatistics(2), Activated(2), Conditional(2), nn.BatchNorm3d(2), nn.LazyBatchNorm1d(), nn.SyncBatchNorm(2)]
    )
    before = {name: value.clone() for name, value in net[1].state_dict().items()}
    synchronise_batchnorm(net)
    assert [takes_own_statistics(layer) for layer in net] == [True, *[False] * 5]
    assert all(torch.equal(value, before[name]) for name, value in net[1].state_dict().items())
