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
