"""torchvision's ResNets, fitted to the data."""

from collections.abc import Sequence

import torchvision
from torch import nn

from lockstep.nets.cnn import image_shape

SMALL = 64  # pixels: images up to this size get the stem of the CIFAR experiments (He et al. 2016, section 4.2)


def resnet(input_shape: Sequence[int], num_outputs: int, depth: int) -> nn.Module:
    """Return torchvision.models.resnet{depth}, weights drawn anew; small images get a 3x3 stem without stride and pooling."""
    net = torchvision.models.get_model(f"resnet{depth}", weights=None, num_classes=num_outputs)
    channels, height, _ = image_shape("lockstep.nets.resnet.resnet", input_shape)
    if height <= SMALL:
        net.conv1 = _first_convolution(channels, kernel_size=3, stride=1)
        net.maxpool = nn.Identity()
    elif channels != 3:
        net.conv1 = _first_convolution(channels, kernel_size=7, stride=2)
    return net


def _first_convolution(channels: int, kernel_size: int, stride: int) -> nn.Conv2d:
    """Return a convolution whose weights are drawn as torchvision's."""
    convolution = nn.Conv2d(channels, 64, kernel_size, stride, padding=kernel_size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
