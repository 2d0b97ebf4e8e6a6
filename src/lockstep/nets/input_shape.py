"""Input shapes of nets."""

from collections.abc import Sequence

from lockstep.errors import config_error


def image_shape(net: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return (channels, height, width). Raises ConfigError, naming the net's target, for data that is not images."""
    if len(input_shape) != 3:
        needs = f"takes images (channels, height, width), and the data has shape {tuple(input_shape)}"
        raise config_error("model.net._target_", net, f"{needs}; use another net, as of model=mlp, or other data")
    channels, height, width = input_shape
    return channels, height, width
