"""Images decoded once: the same samples, and nothing that is not whole."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from image_files import flat, write_noise

from lockstep.datamodules import image_cache
from lockstep.datamodules.image_cache import CachedImageFolder, Mapped
from lockstep.datamodules.image_folder import ImageFolder
from lockstep.errors import ConfigError

COUNT = 70  # three batches


def cached(folder: Path, **options: Any) -> CachedImageFolder:
    return CachedImageFolder(str(folder), **{"size": 8, **options})


def list_files(folder: Path) -> list[str]:
    """What there is of images in the cache of a data folder."""
    return sorted(path.name for path in folder.with_name(f"{folder.name}.cache").glob("*") if path.name != "lock")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_noise(tmp_path / "photos", COUNT)
    return tmp_path / "photos"


def batches(datamodule: ImageFolder) -> list[Any]:
    datamodule.prepare_data()
    loaders: list[Any] = [datamodule.train_dataloader(), datamodule.val_dataloader(), datamodule.test_dataloader()]
    return [batch for loader in loaders for batch in loader]


@pytest.mark.parametrize(("layout", "augment"), [("flat", None), ("split", {"crop": 1, "flip": True})])
def test_every_batch_is_the_uncached_one_bit_for_bit(layout: str, augment: Any, tmp_path: Path) -> None:
    folders = [tmp_path / "photos" / name for name in (("train", "test") if layout == "split" else ("",))]
    for number, folder in enumerate(folders):
        write_noise(folder, 20 + number)
    options = {"size": 8, "batch_size": 6, "augment": augment, "drop_last": False, "num_workers": 0}
    own = batches(CachedImageFolder(str(tmp_path / "photos"), **options))
    other = batches(ImageFolder(str(tmp_path / "photos"), **options))
    assert len(own) == len(other) > 4
    for a, b in zip(own, other, strict=True):
        assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


def all_images(datamodule: CachedImageFolder) -> Mapped:
    images = datamodule.folders["all"]
    return image_cache.cached(images, datamodule.spec.input_shape, datamodule.cache_dir)


def test_images_are_decoded_once_into_their_places(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uncached = ImageFolder(str(photos), size=8).folders["all"]
    packed = all_images(cached(photos))
    assert torch.equal(packed.inputs, torch.stack([image for image, _ in uncached]))
    assert packed.targets.tolist() == [target for _, target in uncached]
    monkeypatch.setattr(image_cache, "_write", None)
    assert torch.equal(all_images(cached(photos)).inputs, packed.inputs)  # from the file
    assert len(list_files(photos)) == 1


def test_a_file_that_is_unreadable_is_named_and_nothing_is_left(photos: Path) -> None:
    damaged = next(photos.rglob("*.jpg"))
    damaged.write_bytes(damaged.read_bytes()[:40])
    with pytest.raises(ConfigError, match=rf"^{damaged}: not a readable image \("):
        cached(photos).prepare_data()
    assert list_files(photos) == []


def test_a_file_that_has_changed_is_another_cache(tmp_path: Path) -> None:
    photos = flat(tmp_path / "photos", 2)
    write_noise(photos, 4)
    cached(photos).prepare_data()
    os.utime(next(photos.rglob("*.jpg")), (1, 1))
    cached(photos).prepare_data()
    assert len(list_files(photos)) == 2
