"""Image files that can't be had say so in one line, and leave nothing."""

from pathlib import Path

import pytest
from commands import refused
from PIL import Image

pytestmark = pytest.mark.slow


def test_an_unreadable_image_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "data" / name / "fine.png")
    (tmp_path / "data" / "b" / "broken.png").write_bytes(b"\x89PNG not really")
    options = ("datamodule=image_folder", "datamodule.data_dir=data")
    few = ("datamodule.val_fraction=0.4", "datamodule.batch_size=2")
    assert refused(tmp_path, *options, *few).startswith("datamodule.data_dir=data/b/broken.png: not a readable image")
    # met by a data worker, without the check at the start
    unseen = (
        "datamodule.verify=false",
        "datamodule.test_fraction=0.34",
        "datamodule.val_fraction=0.0",
        "optimized_metric=train/acc",
    )
    assert "broken.png: not a readable image" in refused(tmp_path, *options, *unseen, "datamodule.batch_size=2", "test=false")


def test_data_that_is_missing_and_cannot_be_downloaded_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, "datamodule=cifar10", "datamodule.data_dir=nodata", HTTPS_PROXY="http://127.0.0.1:9")
    assert line.startswith("datamodule.data_dir=nodata: CIFAR10 is not in")
    assert "could not be downloaded" in line
