"""Batches made on the device are those of the other loaders, to the bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from image_files import write_noise

from lockstep.datamodules import Batch, DataModule, Digits
from lockstep.extras.image_cache.image_cache import CachedImageFolder
from lockstep.extras.image_cache.on_device import OnDevice
from lockstep.extras.images.image_folder import ImageFolder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_noise(tmp_path / "photos", 30)
    return tmp_path / "photos"


def folder(photos: Path, **options: Any) -> ImageFolder:
    return ImageFolder(str(photos), size=8, **options)


KINDS: dict[str, Callable[..., DataModule]] = {
    "floats": lambda _, **options: Digits(augment={"crop": 1, "flip": True}, **options),
    "image files": lambda photos, **options: folder(photos, augment={"crop": 1, "flip": False}, **options),
    "cached": lambda photos, **options: CachedImageFolder(str(photos), size=8, augment={"crop": 1, "flip": True}, **options),
}


def epochs(datamodule: DataModule) -> list[Batch]:
    """Two of training, whose augmentation differs, one of validation and one of the test."""
    datamodule.prepare_data()
    train: Any = datamodule.train_dataloader()
    result = list(train)
    train.sampler.set_epoch(1)
    loaders: list[Any] = [train, datamodule.val_dataloader(), datamodule.test_dataloader()]
    return result + [batch for loader in loaders for batch in loader]


@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_is_that_of_the_other_loaders_bit_for_bit(kind: str, photos: Path) -> None:
    options = {"batch_size": 16, "drop_last": False, "seed": 5}
    own, other = (epochs(KINDS[kind](photos, loading=loading, **options)) for loading in (OnDevice(), None))
    assert len(own) == len(other) >= 6
    for a, b in zip(own, other, strict=True):
        assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a[:3], b[:3], strict=True))
        assert a.loss_weight == b.loss_weight
