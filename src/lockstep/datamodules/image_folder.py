"""Images in one folder per class, decoded in the workers."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from lockstep.datamodules.base import DataModule, DataSpec, Splits, seeded_split
from lockstep.datamodules.images import SUFFIXES, ImageFiles, damage, find_images
from lockstep.errors import config_error


class LabelledFiles(Dataset[tuple[Tensor, Tensor]]):
    """Image files and the numbers of their classes."""

    def __init__(self, images: ImageFiles, targets: list[int]) -> None:
        self.images, self.targets = images, torch.tensor(targets)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.targets[index]


class ImageFolder(DataModule):
    """Any data set laid out as data_dir/{train,val,test}/CLASS/*.jpg|png, or flat as data_dir/CLASS/*.

    Without a val folder validation is a seeded part of train; flat class folders are split in three with the seed.

    Args:
        size: pixels of the square that an image becomes.
        test_fraction: of flat class folders.
        verify: read every image's header before training, so that a damaged file is named at the start.
    """

    def __init__(self, data_dir: str, size: int = 64, test_fraction: float = 0.1, verify: bool = True, **loading: Any) -> None:
        super().__init__(**loading)
        self.data_dir, self.size, self.test_fraction, self.verify = Path(data_dir), size, test_fraction, verify
        self.is_split = (self.data_dir / "train").is_dir()
        self.classes = _class_names(self.data_dir / "train" if self.is_split else self.data_dir)
        self.spec = DataSpec((3, size, size), len(self.classes), class_names=tuple(self.classes))

    def prepare_data(self) -> None:
        if self.verify:
            for folder in [self.data_dir / name for name in ("train", "val", "test")] if self.is_split else [self.data_dir]:
                for path, _ in self._files(folder):
                    if problem := damage(path):
                        raise config_error("datamodule.data_dir", path, f"not a readable image ({problem})")

    def load(self) -> Splits:
        if not self.is_split:
            return self._split_flat()
        train = self._images(self.data_dir / "train")
        val, test = self._images(self.data_dir / "val"), self._images(self.data_dir / "test")
        if len(val):
            return Splits(train, val, test)
        rest, held_out = self.split(len(train))
        return Splits(Subset(train, rest.tolist()), Subset(train, held_out.tolist()) if len(held_out) else None, test)

    def _split_flat(self) -> Splits:
        images = self._images(self.data_dir)
        rest, test = seeded_split(len(images), self.test_fraction, self.seed)
        train, val = (rest[part] for part in self.split(len(rest)))
        train, val, test = (Subset(images, part.tolist()) for part in (train, val, test))
        return Splits(train, val if len(val) else None, test)

    def _images(self, folder: Path) -> LabelledFiles:
        files = self._files(folder)
        images = ImageFiles([path for path, _ in files], (3, self.size, self.size))
        return LabelledFiles(images, [target for _, target in files])

    def _files(self, folder: Path) -> list[tuple[Path, int]]:
        files = [(path, target) for target, name in enumerate(self.classes) for path in find_images(folder / name)]
        if not files and folder.name != "val":
            raise config_error("datamodule.data_dir", self.data_dir, f"no {', '.join(SUFFIXES)} in {folder}/CLASS/")
        return files


def _class_names(folder: Path) -> list[str]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise config_error("datamodule.data_dir", folder, f"not a readable folder ({error})") from error
    if len(names) < 2:
        raise config_error(
            "datamodule.data_dir", folder, f"has {len(names)} class folder(s); accepted is one folder per class, two or more"
        )
    return names
