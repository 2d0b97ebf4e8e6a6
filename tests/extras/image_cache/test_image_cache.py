"""Images decoded once: the same samples, one writer, and nothing that is not whole."""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from image_files import flat, write_class, write_noise, write_split
from torch import Tensor

from lockstep.datamodules import Batch
from lockstep.errors import ConfigError
from lockstep.extras.image_cache.image_cache import CHUNK, CachedImageFolder, UnreadableImages
from lockstep.extras.images import decoding
from lockstep.extras.images.image_folder import ImageFolder

COUNT = 2 * CHUNK + 6  # three chunks


def cached(folder: Path, **options: Any) -> CachedImageFolder:
    return CachedImageFolder(str(folder), **{"size": 8, **options})


def list_files(folder: Path) -> list[str]:
    """What there is of images in the cache of a data folder."""
    return sorted(path.name for path in folder.with_name(f"{folder.name}.cache").glob("*") if path.name != "lock")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_noise(tmp_path / "photos", COUNT)
    return tmp_path / "photos"


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(path: str, _: Any) -> Tensor:
        raise AssertionError(f"{path} is decoded")

    monkeypatch.setattr(decoding, "decode", decode)


def batches(datamodule: ImageFolder) -> list[Batch]:
    datamodule.prepare_data()
    loaders: list[Any] = [datamodule.train_dataloader(), datamodule.val_dataloader(), datamodule.test_dataloader()]
    return [batch for loader in loaders for batch in loader]


@pytest.mark.parametrize("augment", [None, {"crop": 1, "flip": True}])
@pytest.mark.parametrize("layout", ["flat", "split"])
def test_every_batch_is_the_uncached_one_bit_for_bit(layout: str, augment: Any, tmp_path: Path) -> None:
    folders = [tmp_path / "photos" / name for name in (("train", "test") if layout == "split" else ("",))]
    for number, folder in enumerate(folders):
        write_noise(folder, 20 + number)
    options = {"size": 8, "batch_size": 6, "augment": augment, "drop_last": False, "num_workers": 0}
    own = batches(CachedImageFolder(str(tmp_path / "photos"), **options))
    other = batches(ImageFolder(str(tmp_path / "photos"), **options))
    assert len(own) == len(other) > 4
    for a, b in zip(own, other, strict=True):
        assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a[:3], b[:3], strict=True))
        assert a.loss_weight == b.loss_weight


def test_images_are_decoded_by_several_processes_into_their_places(photos: Path, request: pytest.FixtureRequest) -> None:
    uncached = ImageFolder(str(photos), size=8).folders["all"]
    packed = cached(photos).pack(workers=2)["all"]
    assert torch.equal(packed.inputs, torch.stack([image for image, _ in uncached]))
    assert packed.targets.tolist() == [target for _, target in uncached]
    request.getfixturevalue("no_decoding")
    assert torch.equal(cached(photos).pack()["all"].inputs, packed.inputs)  # from the file
    assert len(list_files(photos)) == 1


def write_another(photos: Path) -> None:
    write_class(photos, "a", 1)


def touch(photos: Path) -> None:
    os.utime(next(photos.rglob("*.jpg")), (1, 1))


@pytest.mark.parametrize("change", [write_another, touch])
def test_a_change_to_the_files_is_another_cache(change: Callable[[Path], None], tmp_path: Path) -> None:
    photos = flat(tmp_path / "photos", 2)
    write_noise(photos, 4)
    cached(photos).prepare_data()
    change(photos)
    cached(photos).prepare_data()
    assert len(list_files(photos)) == 2


@contextmanager
def forked(work: Callable[[], None]) -> Iterator[int]:
    """A process that does the work; on leaving it is waited for."""
    process = os.fork()
    if not process:
        try:
            work()
        finally:
            os._exit(0)
    yield process
    os.waitpid(process, 0)


def test_a_writer_that_is_killed_leaves_nothing_that_is_taken_for_whole(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, seen = decoding.decode, []

    def killed_in_the_second_chunk(path: str, shape: Any) -> Tensor:
        if len(seen) > CHUNK + 3:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(path)
        return decode(path, shape)

    monkeypatch.setattr(decoding, "decode", killed_in_the_second_chunk)
    with forked(lambda: cached(photos).pack(workers=0) and None):
        pass
    assert [name.endswith(".partial") for name in list_files(photos)] == [True]
    monkeypatch.setattr(decoding, "decode", decode)
    packed = cached(photos).pack(workers=0)["all"]
    assert torch.equal(packed.inputs, torch.stack([image for image, _ in ImageFolder(str(photos), size=8).folders["all"]]))
    assert list_files(photos) == [packed.path.name]


def test_of_several_processes_one_decodes_and_the_others_wait(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = decoding.decode

    def noted(path: str, shape: Any) -> Tensor:
        with (tmp_path / "decoded").open("a") as file:
            file.write(f"{path}\n")
        time.sleep(0.002)
        return decode(path, shape)

    monkeypatch.setattr(decoding, "decode", noted)

    def use() -> None:
        assert len(cached(photos).pack(workers=0)["all"]) == COUNT
        (tmp_path / f"done.{os.getpid()}").touch()

    with forked(use), forked(use), forked(use):
        pass
    assert len((tmp_path / "decoded").read_text().splitlines()) == COUNT
    assert len(list(tmp_path.glob("done.*"))) == 3


def test_all_files_that_are_unreadable_are_named_and_nothing_is_left(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    write_split(photos, test=1)
    damaged = [*write_noise(photos / "train", COUNT)[10::20], photos / "test" / "cat" / "00.png"]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:40])
    for name in ("cat", "dog"):
        write_class(photos / "train", name, 1)
    with pytest.raises(UnreadableImages) as refused:
        cached(photos).pack(2)
    assert [problem.partition(": not a readable image (")[0] for problem in refused.value.problems] == [*map(str, damaged)]
    line = f"datamodule.data_dir={photos}: has 4 unreadable images: {damaged[0]}: not a readable image ("
    assert str(refused.value).startswith(line)
    assert str(refused.value).endswith(" and 1 more")
    assert list_files(photos) == []


def test_a_full_disk_is_refused_by_the_key_and_leaves_nothing(photos: Path) -> None:
    """Files that may not grow stand for it: the error comes from write(2), as ENOSPC does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ConfigError) as refused:
            cached(photos).pack(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(refused.value).startswith(f"datamodule.cache_dir={photos}.cache: can't be written (File too large); accepted is")
    assert list_files(photos) == []
