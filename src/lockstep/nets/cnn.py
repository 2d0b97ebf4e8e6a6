"""A small convolutional net."""

from collections.abc import Sequence

from torch import Tensor, nn

from lockstep.errors import check_at_least
from lockstep.nets.input_shape import image_shape


class CNN(nn.Module):
    """Three 3x3 convolutions, each with BatchNorm and ReLU, twice as wide at half the size; global average pooling."""

    def __init__(self, input_shape: Sequence[int], num_outputs: int, width: int = 32) -> None:
        super().__init__()
        check_at_least(1, width=width)
        channels, _, _ = image_shape("lockstep.nets.CNN", input_shape)
        self.features = nn.Sequential(
            _block(channels, width, stride=1),
            _block(width, 2 * width, stride=2),
            _block(2 * width, 4 * width, stride=2),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, channels, height, width) to (n, num_outputs)."""
        return self.head(self.features(x))


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    # no bias: BatchNorm subtracts it again, and its rounding would grow there
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
