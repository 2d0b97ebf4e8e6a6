"""A data set packed ahead of time is what a run then reads."""

import sys
from pathlib import Path

import pack
import pytest
from image_files import write_noise

from lockstep.extras.image_cache.image_cache import CachedImageFolder
from lockstep.extras.images import decoding


def packed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["pack.py", *arguments])
    pack.main()


def test_what_is_packed_is_what_a_run_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_noise(tmp_path / "photos", 40)
    folder = f"datamodule.data_dir={tmp_path}/photos"
    packed(monkeypatch, "datamodule=cached_image_folder", folder, "datamodule.size=8", "--workers", "2")
    row = capsys.readouterr().out.splitlines()[-1].split("  ")
    assert row[1:] == ["40 images", "0.0 MiB"]
    assert Path(row[0]).stat().st_size == 40 * 3 * 8 * 8
    monkeypatch.setattr(decoding, "decode", None)
    assert CachedImageFolder(f"{tmp_path}/photos", size=8).describe() == {"train": 32, "val": 4, "test": 4}
