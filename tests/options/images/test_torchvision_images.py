"""MNIST and its like: read and split, or refused."""

import struct
from pathlib import Path

import numpy
import pytest
from commands import refused

from lockstep.datamodules.torchvision_images import TorchvisionImages


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


@pytest.mark.slow
def test_data_that_is_missing_and_cannot_be_downloaded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodata").mkdir()  # as torchvision does
    line = refused(tmp_path, "datamodule=cifar10", "datamodule.data_dir=nodata", HTTPS_PROXY="http://127.0.0.1:9")
    assert line.startswith("datamodule.data_dir=nodata: CIFAR10 is not there and can't be downloaded (")
