"""Images in one folder per class, found as torchvision finds them and decoded in the workers."""

import logging
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torchvision
from torchvision.datasets.folder import find_classes

from lockstep.datamodules.base import DataModule, DataSpec
from lockstep.datamodules.splits import Splits
from lockstep.errors import check_at_least, config_error
from lockstep.extras.images.decoding import WORKERS, damage, decode

log = logging.getLogger(__name__)


class LabelledImages(torchvision.datasets.ImageFolder):
    """torchvision's ImageFolder: (image, class number) pairs of one folder, whose class folders are searched through.

    Classes have the numbers they have in `classes`. Raises ConfigError for another class, and for a class without an image.
    """

    def __init__(self, folder: Path, classes: Sequence[str], shape: Sequence[int]) -> None:
        self.numbers = {name: number for number, name in enumerate(classes)}
        try:
            super().__init__(str(folder), loader=partial(decode, shape=shape))
        except OSError as error:
            raise config_error("datamodule.data_dir", folder, str(error)) from error

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        names, _ = super().find_classes(directory)
        if unknown := sorted(set(names) - self.numbers.keys()):
            raise config_error("datamodule.data_dir", directory, f"has classes that train/ has not: {', '.join(unknown)}")
        if absent := sorted(self.numbers.keys() - set(names)):
            log.warning(f"{directory} has no images of {', '.join(absent)}")
        return names, {name: self.numbers[name] for name in names}


class ImageFolder(DataModule):
    """Any data set laid out as data_dir/{train,val,test}/CLASS/*.jpg, or flat as data_dir/CLASS/*.jpg; or .png, .webp, ...

    Without a val folder validation is a seeded part of train; flat class folders are split in three with the seed.
    """

    def __init__(
        self,
        data_dir: str,
        size: int = 64,
        test_fraction: float = 0.1,
        verify: bool = True,
        num_workers: int | None = None,
        **loading: Any,
    ) -> None:
        num_workers = WORKERS if num_workers is None else num_workers
        super().__init__(num_workers=num_workers, **loading)
        check_at_least(1, size=size)
        if not Path(data_dir).is_dir():
            raise ValueError(f"data_dir={data_dir}: no such folder: {Path(data_dir).absolute()}; use a folder with data")
        self.data_dir, self.size, self.test_fraction, self.verify = Path(data_dir), size, test_fraction, verify
        self.is_split = (self.data_dir / "train").is_dir()
        self.has_test = (self.data_dir / "test").is_dir() if self.is_split else test_fraction > 0
        if self.is_split and (self.data_dir / "val").is_dir():
            self.refuse_folds()
        self.classes = _class_names(self.data_dir / "train" if self.is_split else self.data_dir)
        self.spec = DataSpec((3, size, size), len(self.classes), class_names=tuple(self.classes))

    @cached_property
    def folders(self) -> dict[str, LabelledImages]:
        """What there is of train, val and test; flat class folders as "all"."""
        there = {"all": self.data_dir}
        if self.is_split:
            there = {name: folder for name in ("train", "val", "test") if (folder := self.data_dir / name).is_dir()}
        return {name: LabelledImages(folder, self.classes, self.spec.input_shape) for name, folder in there.items()}

    def prepare_data(self) -> None:
        """Raises ConfigError where the images are too few, before any is decoded."""
        numbers = {name: range(len(images)) for name, images in self.folders.items()}
        self.check_length(len(self.draw_splits(numbers).train))
        self.check_images()

    def check_images(self) -> None:
        """Reads every image's header, before training."""
        for images in self.folders.values():
            for path, _ in images.samples if self.verify else []:
                if problem := damage(path):
                    raise config_error("datamodule.data_dir", path, f"not a readable image ({problem})")

    def load(self) -> Splits:
        return self.draw_splits(self.folders)

    def draw_splits(self, datasets: Any) -> Splits:
        return self.drawn(**datasets) if self.is_split else self.drawn(datasets["all"], test_fraction=self.test_fraction)


def _class_names(folder: Path) -> list[str]:
    try:
        names, _ = find_classes(folder)
    except OSError as error:
        raise config_error("datamodule.data_dir", folder, f"accepted is a folder with one folder per class ({error})") from error
    if len(names) < 2:
        accepted = f"has one class, {names[0]}; accepted is one folder per class, two or more"
        raise config_error("datamodule.data_dir", folder, accepted)
    return names
