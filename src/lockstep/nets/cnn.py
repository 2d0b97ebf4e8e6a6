"""A small convolutional net."""

from collections.abc import Sequence

from torch import Tensor, nn

from lockstep.errors import check_at_least, config_error


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


def image_shape(net: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return (channels, height, width). Raises ConfigError, naming the net's target, for data that is not images."""
    if len(input_shape) != 3:
        needs = f"takes images (channels, height, width), and the data has shape {tuple(input_shape)}"
        raise config_error("model.net._target_", net, f"{needs}; use another net, as of model=mlp, or other data")
    channels, height, width = input_shape
    return channels, height, width
