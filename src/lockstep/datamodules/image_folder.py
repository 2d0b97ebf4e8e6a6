"""Images in one folder per class, as in torchvision's ImageFolder, decoded in the data workers."""

from collections.abc import Sequence
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import torchvision
from PIL import Image
from torch import Tensor
from torchvision.datasets.folder import find_classes
from torchvision.transforms.v2 import functional

from lockstep.datamodules.base import DataModule, DataSpec, Splits
from lockstep.errors import ConfigError, check_at_least, config_error

WORKERS = 2  # default number of data workers, which decode


class LabelledImages(torchvision.datasets.ImageFolder):
    """torchvision's ImageFolder with the class indices of `classes`."""

    def __init__(self, folder: Path, classes: Sequence[str], shape: Sequence[int]) -> None:
        self.numbers = {name: number for number, name in enumerate(classes)}
        super().__init__(str(folder), loader=partial(decode, shape=shape))

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        """Return the names of the class folders, and their indices. Raise ConfigError for a folder that is not in `classes`."""
        names, _ = super().find_classes(directory)
        if unknown := sorted(set(names) - self.numbers.keys()):
            raise config_error("datamodule.data_dir", directory, f"has classes that train/ has not: {', '.join(unknown)}")
        return names, {name: self.numbers[name] for name in names}


class ImageFolder(DataModule):
    """A data set laid out as data_dir/{train,val,test}/CLASS/*.jpg, or flat as data_dir/CLASS/*.jpg; or .png, .webp, ...

    Without a val folder, a part of train is drawn with the seed; flat class folders are split in three with the seed.
    """

    def __init__(
        self, data_dir: str, size: int = 64, test_fraction: float = 0.1, num_workers: int = WORKERS, **loading: Any
    ) -> None:
        super().__init__(num_workers=num_workers, **loading)
        check_at_least(1, size=size)
        if not Path(data_dir).is_dir():
            raise ValueError(f"data_dir={data_dir}: no such folder: {Path(data_dir).absolute()}; use a folder with data")
        self.data_dir = Path(data_dir)
        self._folders = {name: folder for name in ("train", "val", "test") if (folder := self.data_dir / name).is_dir()}
        is_split = "train" in self._folders
        if not is_split:
            self._folders = {"train": self.data_dir}
        self.test_fraction = 0.0 if is_split else test_fraction
        self.has_test = "test" in self._folders or self.test_fraction > 0
        classes, _ = find_classes(self._folders["train"])
        self.spec = DataSpec((3, size, size), len(classes), class_names=tuple(classes))

    @cached_property
    def images(self) -> dict[str, LabelledImages]:
        """Images of each split, or all of them as "train" to draw the others from."""
        classes, shape = self.spec.class_names or (), self.spec.input_shape
        return {name: LabelledImages(folder, classes, shape) for name, folder in self._folders.items()}

    def load(self) -> Splits:
        """Find the images of each split."""
        return self.drawn(**self.images, test_fraction=self.test_fraction)


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
