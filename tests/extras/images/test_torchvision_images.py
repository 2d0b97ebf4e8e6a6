"""MNIST and its like: read, split, and refused where a file is damaged or missing."""

import struct
from pathlib import Path
from urllib.error import URLError

import numpy
import pytest
import torch

from lockstep.datamodules import InMemory
from lockstep.errors import ConfigError
from lockstep.extras.images.torchvision_images import TorchvisionImages


def test_mnist_is_read_and_split(mnist: Path) -> None:
    datamodule = TorchvisionImages("MNIST", str(mnist))
    datamodule.prepare_data()  # finds it there
    assert datamodule.describe() == {"train": 54_000, "val": 6_000, "test": 10_000}
    test, val = datamodule.splits.test, datamodule.splits.val
    assert isinstance(test, InMemory)
    assert test.inputs.shape == (10_000, 1, 28, 28)
    assert test.inputs.dtype == torch.uint8
    assert test.targets[:5].tolist() == [7, 2, 1, 0, 4]
    assert val is not None
    both = torch.cat([datamodule.splits.train.targets, val.targets])
    # how many of each digit the official training set has
    assert torch.bincount(both).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def write_mnist(folder: Path, length: int = 20) -> Path:
    """A small data set in MNIST's files: magic number, sizes, then bytes."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        pixels = numpy.arange(length * 784, dtype=numpy.uint8).tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, length, 28, 28) + pixels)
        labels = bytes(i % 10 for i in range(length))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, length) + labels)
    return raw


def test_mnist_files_of_one_s_own_are_read(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    mnist = TorchvisionImages("MNIST", str(tmp_path), val_fraction=0.25)
    mnist.prepare_data()
    assert mnist.describe() == {"train": 15, "val": 5, "test": 20}
    assert mnist.splits.test.targets.tolist() == [i % 10 for i in range(20)]
    assert mnist.splits.test.inputs.flatten()[:300].tolist() == [i % 256 for i in range(300)]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", download)


@pytest.mark.usefixtures("offline")
def test_mnist_that_is_missing_and_can_not_be_downloaded_is_refused_and_leaves_no_new_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    folder = tmp_path / "sets" / "data"
    with pytest.raises(ConfigError) as refused:
        TorchvisionImages("MNIST", str(folder)).prepare_data()
    reason = f"MNIST is not in {folder} and could not be downloaded; put torchvision's files there, or "
    assert str(refused.value).startswith(f"datamodule.data_dir={folder}: {reason}")
    assert "\n" not in str(refused.value)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("kept", [3, -1])
def test_an_mnist_file_that_is_cut_is_refused_and_kept(kept: int, tmp_path: Path) -> None:
    """Within its header, or a byte before its end."""
    path = write_mnist(tmp_path) / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ConfigError) as refused:
        TorchvisionImages("MNIST", str(tmp_path)).prepare_data()
    assert str(refused.value).startswith(f"datamodule.data_dir={tmp_path}: a file of MNIST there is unreadable (")
    assert path.exists()  # the user's file
