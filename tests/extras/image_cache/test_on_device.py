"""Batches made on the device are those of the other loaders, to the bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from image_files import write_noise
from synthetic import Images, Vectors

from lockstep.datamodules import Batch, DataModule, Digits
from lockstep.errors import ConfigError
from lockstep.extras.image_cache.image_cache import CachedImageFolder
from lockstep.extras.image_cache.on_device import BatchesOnDevice, OnDevice
from lockstep.extras.images.image_folder import ImageFolder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_noise(tmp_path / "photos", 30)
    return tmp_path / "photos"


def folder(photos: Path, **options: Any) -> ImageFolder:
    return ImageFolder(str(photos), size=8, **options)


KINDS: dict[str, Callable[..., DataModule]] = {
    "floats": lambda _, **options: Digits(augment={"crop": 1, "flip": True}, **options),
    "bytes": lambda _, **options: Images(augment={"crop": 2, "flip": True}, **options),
    "vectors": lambda _, **options: Vectors(**options),
    "image files": lambda photos, **options: folder(photos, augment={"crop": 1, "flip": False}, **options),
    "image files, by workers": lambda photos, **options: folder(photos, num_workers=2, **options),
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


def test_nothing_is_read_once_it_is_there(photos: Path) -> None:
    datamodule = folder(photos, loading=OnDevice(), batch_size=8)
    loader: Any = datamodule.train_dataloader()
    for path in photos.rglob("*.jpg"):
        path.unlink()
    assert loader.num_workers == 0
    assert sum(len(batch.ids) for batch in loader) == 24  # 3 of 30 are tested, 3 validated


def test_data_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def brought(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("lockstep.extras.image_cache.on_device._brought", brought)
    with pytest.raises(ConfigError, match=r"^datamodule.loading=on_device: 7 samples do not fit on cuda:0; accepted is null$"):
        BatchesOnDevice(range(7), torch.device("cuda", 0))
