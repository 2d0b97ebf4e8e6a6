"""Image files as tensors, in one folder per class, decoded once; MNIST and its like."""

import os
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from commands import refused
from PIL import Image
from torch.utils.data import Subset
from torchvision.transforms import v2

from lockstep.datamodules import image_cache
from lockstep.datamodules.image_cache import CachedImageFolder
from lockstep.datamodules.image_folder import ImageFolder, decode
from lockstep.datamodules.torchvision_images import TorchvisionImages
from lockstep.errors import ConfigError


def write_image(path: Path, color: Any, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (12, 10), color).save(path)
    return path


def write_noise(folder: Path, count: int) -> None:
    """Write images of noise in classes a and b, no two alike."""
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((20 + number % 3, 18), 60 + number).convert("RGB").save(path)


def write_classes(folder: Path, count: int) -> Path:
    """Write `count` red cats and blue dogs."""
    for number in range(count):
        write_image(folder / "cat" / f"{number:02}.png", (255, 0, 0))
        write_image(folder / "dog" / f"{number:02}.jpg", (0, 0, 255))
    return folder


def write_split(folder: Path, **counts: int) -> Path:
    for split, count in counts.items():
        write_classes(folder / split, count)
    return folder


@pytest.mark.parametrize(("mode", "color", "expected"), [("L", 90, (90, 90, 90)), ("RGBA", (10, 20, 30, 255), (10, 20, 30))])
def test_images_of_every_mode_become_rgb(mode: str, color: Any, expected: tuple[int, int, int], tmp_path: Path) -> None:
    image = decode(write_image(tmp_path / "image.png", color, mode), (3, 6, 6))
    assert torch.equal(image, torch.tensor(expected, dtype=torch.uint8)[:, None, None].expand(3, 6, 6))


@pytest.mark.parametrize(("width", "height"), [(640, 480), (5, 7)])
def test_pixels_are_those_of_torchvision_s_resize_and_crop(width: int, height: int, tmp_path: Path) -> None:
    pixels = numpy.random.default_rng(0).integers(256, size=(height, width, 3), dtype=numpy.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    plain = v2.Compose([v2.Resize(32, antialias=True), v2.CenterCrop(32)])
    assert torch.equal(decode(tmp_path / "image.png", (3, 32, 32)), plain(torch.from_numpy(pixels).permute(2, 0, 1)))


def test_split_folders_are_the_splits(tmp_path: Path) -> None:
    datamodule = ImageFolder(str(write_split(tmp_path, train=4, val=2, test=3)), size=8)
    datamodule.prepare_data()
    assert datamodule.describe() == {"train": 8, "val": 4, "test": 6}
    assert datamodule.spec.input_shape == (3, 8, 8)
    assert (datamodule.spec.num_outputs, datamodule.spec.class_names) == (2, ("cat", "dog"))
    for split in (datamodule.splits.train, datamodule.splits.val, datamodule.splits.test):
        for image, target in split:  # pyright: ignore[reportOptionalIterable]
            assert (image.shape, image.dtype) == ((3, 8, 8), torch.uint8)
            red, _, blue = image.float().mean(dim=(1, 2)).tolist()
            assert target == (0 if red > blue else 1)


@pytest.mark.parametrize(
    ("layout", "options", "sizes"),
    [
        ("split", {"val_fraction": 0.2}, {"train": 16, "val": 4, "test": 4}),
        ("flat", {"val_fraction": 0.25, "test_fraction": 0.1}, {"train": 27, "val": 9, "test": 4}),
    ],
)
def test_what_has_no_folder_of_its_own_is_drawn_with_the_seed(
    layout: str, options: dict[str, float], sizes: dict[str, int], tmp_path: Path
) -> None:
    folder = write_split(tmp_path, train=10, test=2) if layout == "split" else write_classes(tmp_path, 20)

    def drawn(seed: int) -> list[list[int]]:
        datamodule = ImageFolder(str(folder), seed=seed, **options)
        assert datamodule.describe() == sizes
        splits = (datamodule.splits.train, datamodule.splits.val, datamodule.splits.test)
        return [list(split.indices) for split in splits if isinstance(split, Subset)]

    assert sorted(i for part in drawn(0) for i in part) == list(range(20 if layout == "split" else 40))
    assert drawn(0) == drawn(0) != drawn(1)


def test_a_class_that_training_does_not_have_is_refused_and_others_keep_their_numbers(tmp_path: Path) -> None:
    write_split(tmp_path, train=2, val=1)
    write_image(tmp_path / "test" / "dog" / "0.png", (0, 0, 255))
    assert ImageFolder(str(tmp_path)).images["test"].targets == [1]
    write_image(tmp_path / "val" / "emu" / "0.png", (0, 255, 0))
    with pytest.raises(ConfigError, match=r"val: has classes that train/ has not: emu$"):
        ImageFolder(str(tmp_path)).load()


def test_mnist_files_of_one_s_own_are_read(tmp_path: Path) -> None:
    """A file has a magic number, sizes, then bytes."""
    length, raw = 20, tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        pixels = numpy.arange(length * 784, dtype=numpy.uint8).tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, length, 28, 28) + pixels)
        labels = bytes(i % 10 for i in range(length))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, length) + labels)
    mnist = TorchvisionImages("MNIST", str(tmp_path), val_fraction=0.25)
    mnist.prepare_data()
    assert mnist.describe() == {"train": 15, "val": 5, "test": 20}
    assert mnist.splits.test.tensors[1].tolist() == [i % 10 for i in range(length)]
    assert mnist.splits.test.tensors[0].flatten()[:300].tolist() == [i % 256 for i in range(300)]


@pytest.mark.slow
def test_data_that_is_missing_and_cannot_be_downloaded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodata").mkdir()  # as torchvision does
    line = refused(tmp_path, "datamodule=cifar10", "datamodule.data_dir=nodata", HTTPS_PROXY="http://127.0.0.1:9")
    assert line.startswith("datamodule.data_dir=nodata: CIFAR10 is not there and can't be downloaded (")


def cached(folder: Path) -> CachedImageFolder:
    datamodule = CachedImageFolder(str(folder), size=8, num_workers=0)
    datamodule.prepare_data()
    return datamodule


def list_files(folder: Path) -> list[str]:
    """Return the names of the image files in the cache of a data folder."""
    return sorted(path.name for path in folder.with_name(f"{folder.name}.cache").glob("*") if path.name != "lock")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_noise(tmp_path / "photos", 70)  # three batches
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


def test_images_are_decoded_once_and_anew_when_a_file_has_changed(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(photos)
    with monkeypatch.context() as patch:
        patch.setattr(image_cache, "_write", None)
        cached(photos)
    assert len(list_files(photos)) == 1
    os.utime(next(photos.rglob("*.jpg")), (1, 1))
    cached(photos)
    assert len(list_files(photos)) == 2


def test_a_file_that_is_unreadable_is_named_and_nothing_is_left(photos: Path) -> None:
    damaged = next(photos.rglob("*.jpg"))
    damaged.write_bytes(damaged.read_bytes()[:40])
    with pytest.raises(ConfigError, match=rf"^{damaged}: not a readable image \("):
        cached(photos)
    assert list_files(photos) == []
