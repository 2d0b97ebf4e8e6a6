"""Decode image files to tensors."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional

from lockstep.errors import ConfigError

WORKERS = 2  # default number of data workers, which decode


def decode(image: str | Path | bytes, shape: Sequence[int], name: str | None = None) -> Tensor:
    """Return an image file, or its bytes, as uint8 (channels, height, width), resized by its shorter side and center-cropped.

    Raises:
        ConfigError: The image can't be read; the message has its path or `name`.
    """
    channels, height, width = shape
    try:
        with Image.open(BytesIO(image) if isinstance(image, bytes) else image) as file:
            pixels = functional.pil_to_tensor(_eight_bit(file).convert("L" if channels == 1 else "RGB"))
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, DecompressionBombError, ...
        raise ConfigError(f"{name or image}: not a readable image ({error})") from error
    return functional.center_crop(functional.resize(pixels, [max(height, width)], antialias=True), [height, width])


def _eight_bit(image: Image.Image) -> Image.Image:
    """Scale greys of 16 bits to 8, which Pillow's own conversion clips at 255."""
    return Image.fromarray((numpy.asarray(image) >> 8).astype(numpy.uint8)) if image.mode.startswith("I") else image
