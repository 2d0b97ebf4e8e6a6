"""Image files as tensors."""

from collections.abc import Sequence
from pathlib import Path

import numpy
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional

from lockstep.errors import ConfigError

SUFFIXES = (".jpg", ".jpeg", ".png")


class ImageFiles(Dataset[Tensor]):
    """Files as (channels, height, width) uint8 images of one shape, with 1 channel or 3."""

    def __init__(self, paths: Sequence[Path], shape: Sequence[int]) -> None:
        self.paths, self.shape = paths, shape

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return decode(self.paths[index], self.shape)


def decode(path: Path, shape: Sequence[int]) -> Tensor:
    """The shorter side resized, the middle cropped. Raises ConfigError naming a file that can't be read."""
    channels, height, width = shape
    try:
        with Image.open(path) as image:
            pixels = functional.pil_to_tensor(_eight_bit(image).convert("L" if channels == 1 else "RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise ConfigError(f"{path}: not a readable image ({error})") from error
    scale = max(height / pixels.shape[1], width / pixels.shape[2])
    size = [max(height, round(pixels.shape[1] * scale)), max(width, round(pixels.shape[2] * scale))]
    return functional.center_crop(functional.resize(pixels, size, antialias=True), [height, width])


def _eight_bit(image: Image.Image) -> Image.Image:
    """16-bit greys scaled to 8: PIL's own conversion would clip them at 255."""
    return Image.fromarray((numpy.asarray(image) >> 8).astype(numpy.uint8)) if image.mode.startswith("I") else image


def find_images(folder: Path) -> list[Path]:
    """The image files directly in a folder, sorted by name."""
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)


def damage(path: Path) -> str | None:
    """What is wrong with an image file as far as its header tells; None if nothing is."""
    try:
        with Image.open(path) as image:
            image.verify()
    except (UnidentifiedImageError, OSError, SyntaxError) as error:  # SyntaxError: a broken PNG chunk
        return str(error)
    return None
