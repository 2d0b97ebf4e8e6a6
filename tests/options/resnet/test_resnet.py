"""ResNets: the stem, and the size."""

from typing import Any

import pytest
import torch
from torch import nn

from lockstep.nets.resnet import resnet


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "pools"),
    [((3, 32, 32), (3, 3), (1, 1), False), ((3, 65, 65), (7, 7), (2, 2), True)],
)
def test_resnet_has_a_stem_for_the_size_of_its_images(
    shape: tuple[int, int, int], kernel: tuple[int, int], stride: tuple[int, int], pools: bool
) -> None:
    with torch.device("meta"):  # shapes without numbers
        net: Any = resnet(shape, 10, depth=18)
        outputs = net(torch.zeros(2, *shape))
    assert outputs.shape == (2, 10)
    assert (net.conv1.in_channels, net.conv1.out_channels) == (shape[0], 64)
    assert (net.conv1.kernel_size, net.conv1.stride) == (kernel, stride)
    assert net.conv1.padding == (kernel[0] // 2, kernel[0] // 2)
    assert net.conv1.bias is None
    assert isinstance(net.maxpool, nn.MaxPool2d) is pools
