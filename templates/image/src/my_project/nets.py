"""Nets: plain modules of torch. `input_shape` and `num_outputs` come from the data."""

from collections.abc import Sequence

from torch import Tensor, nn


class ConvNet(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self, input_shape: Sequence[int], num_outputs: int, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(input_shape[0], width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * width, num_outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) to (n, num_outputs)."""
        return self.layers(x)
