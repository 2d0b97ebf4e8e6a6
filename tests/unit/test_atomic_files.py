"""Files that several processes read and write."""

import os
from pathlib import Path

import pytest

from lockstep.atomic_files import read_json


def test_a_pipe_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "status.json")
    assert read_json(tmp_path / "status.json") is None
    assert "status.json: is not readable" in caplog.text
    assert read_json(tmp_path / "nothing.json") is None


def test_what_another_writer_has_as_nan_is_null(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"metrics": {"val/loss": NaN}, "wall_time": -Infinity}')
    assert read_json(tmp_path / "metrics.json") == {"metrics": {"val/loss": None}, "wall_time": None}
