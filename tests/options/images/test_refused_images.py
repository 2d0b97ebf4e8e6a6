"""Images that can't be had say so in one line."""

from pathlib import Path

import pytest
from commands import refused

pytestmark = pytest.mark.slow


def test_data_that_is_missing_and_cannot_be_downloaded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodata").mkdir()  # as torchvision does
    line = refused(tmp_path, "datamodule=cifar10", "datamodule.data_dir=nodata", HTTPS_PROXY="http://127.0.0.1:9")
    assert line.startswith("datamodule.data_dir=nodata: CIFAR10 is not there and can't be downloaded (")
