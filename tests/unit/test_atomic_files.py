"""Files that several processes read and write."""

import errno
import os
from pathlib import Path

import pytest

from lockstep.atomic_files import read_json, sync_folder


def test_a_pipe_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "status.json")
    assert read_json(tmp_path / "status.json") is None
    assert "status.json: is not readable" in caplog.text
    assert read_json(tmp_path / "nothing.json") is None


def test_what_another_writer_has_as_nan_is_null(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"metrics": {"val/loss": NaN}, "wall_time": -Infinity}')
    assert read_json(tmp_path / "metrics.json") == {"metrics": {"val/loss": None}, "wall_time": None}


def test_a_folder_that_can_not_be_synced_is_let_off_and_one_that_fails_at_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CIFS fsync(2) of a folder is EINVAL."""

    def fail(number: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", lambda _: fail(errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
