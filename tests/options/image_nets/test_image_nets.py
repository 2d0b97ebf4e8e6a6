"""ResNets and Vision Transformers: the stem, the patches, and what they refuse."""

from typing import Any

import pytest
import torch
from torch import nn

from lockstep.errors import ConfigError
from lockstep.nets.resnet import resnet
from lockstep.nets.vit import ViT


@pytest.mark.parametrize(("size", "kernel", "stride"), [(32, 3, 1), (65, 7, 2)])
def test_resnet_has_a_stem_for_the_size_of_its_images(size: int, kernel: int, stride: int) -> None:
    with torch.device("meta"):  # shapes without numbers
        net: Any = resnet((3, size, size), 10, depth=18)
        assert net(torch.zeros(2, 3, size, size)).shape == (2, 10)
    assert (net.conv1.kernel_size, net.conv1.stride) == ((kernel, kernel), (stride, stride))
    assert isinstance(net.maxpool, nn.MaxPool2d) is (size > 64)


def test_a_patch_elsewhere_is_seen_elsewhere() -> None:
    """Without positions the mean over the patches could not tell."""
    net = ViT((1, 8, 8), 4, width=8, depth=1, heads=2, patch=4).eval()
    image = torch.zeros(1, 1, 8, 8)
    image[..., :4, :4] = 1.0
    with torch.no_grad():
        assert not torch.allclose(net(image), net(image.flip(-1)))
        net.positions.zero_()
        assert torch.allclose(net(image), net(image.flip(-1)), atol=1e-6)


def test_a_patch_that_does_not_divide_the_image_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.net.patch=3: use what divides the images' 8 and 8 pixels$"):
        ViT((1, 8, 8), 4, patch=3)
