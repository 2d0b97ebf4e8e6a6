"""Image files as tensors."""

from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms.v2 import functional

from lockstep.errors import ConfigError

WORKERS = 2  # processes that decode, unless another number is asked for


def decode(image: str | Path | bytes, shape: Sequence[int], name: str | None = None) -> Tensor:
    """A file, or the bytes of one, with the shorter side resized and the middle cropped. Raises ConfigError for one that can't
    be read, by its path or the `name` given."""
    channels, height, width = shape
    try:
        pixels = _pixels(image, "L" if channels == 1 else "RGB")
    except Exception as error:  # Pillow raises what it meets: OSError, SyntaxError, ValueError, DecompressionBombError, ...
        raise ConfigError(f"{name or image}: not a readable image ({error})") from error
    tall, wide = pixels.shape[1:]
    is_wide = height * wide >= width * tall  # the longer side is cut to an integer, as by torchvision's Resize
    size = [height, int(height * wide / tall)] if is_wide else [int(width * tall / wide), width]
    return functional.center_crop(functional.resize(pixels, size, antialias=True), [height, width])


def _pixels(file: str | Path | bytes, mode: str) -> Tensor:
    """(channels, height, width), uint8. JPEGs by torchvision, which asks the same library as Pillow and copies less."""
    with Image.open(BytesIO(file) if isinstance(file, bytes) else file) as image:
        if image.format == "JPEG" and image.mode == mode:
            with suppress(RuntimeError):  # of some damaged files Pillow reads more, and of all it says what is wrong
                content = (
                    torch.frombuffer(bytearray(file), dtype=torch.uint8) if isinstance(file, bytes) else read_file(str(file))
                )
                pixels: Any = decode_jpeg(content)
                return pixels
        return functional.pil_to_tensor(_eight_bit(image).convert(mode))


def _eight_bit(image: Image.Image) -> Image.Image:
    """16-bit greys scaled to 8: PIL's own conversion would clip them at 255, as it would larger ones of 32 bits."""
    if not image.mode.startswith("I"):
        return image
    values = numpy.asarray(image)
    if image.mode == "I" and image.format != "PNG":  # PNG has 16 bits at most; an older Pillow says I of those
        if values.min() < 0 or values.max() > 255:
            raise ValueError("its integers of 32 bits are beyond 0 to 255")
        return Image.fromarray(values.astype(numpy.uint8))
    return Image.fromarray((values >> 8).astype(numpy.uint8))


def damage(path: str | Path) -> str | None:
    """What is wrong with an image file as far as its header tells; None if nothing is."""
    try:
        with Image.open(path) as image:
            image.verify()
    except Exception as error:  # see above
        return str(error)
    return None
