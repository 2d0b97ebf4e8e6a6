"""A file that several processes want, of which one writes it."""

import os
import threading
import time
from pathlib import Path

import pytest

from lockstep.extras.file_cache.file_cache import write_once


def test_where_a_file_can_not_be_written_nothing_is_left(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("unreadable")

    with pytest.raises(ValueError, match="unreadable"):
        write_once(tmp_path / "a" / "b" / "file", fail)
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "lock").touch()
    with pytest.raises(ValueError, match="unreadable"):
        write_once(tmp_path / "a" / "file", fail)
    assert [*tmp_path.rglob("*")] == [tmp_path / "a", tmp_path / "a" / "lock"]  # as it was


def test_who_waited_for_one_that_failed_makes_another_lock(tmp_path: Path) -> None:
    """A lock on a file that is gone is nobody else's concern: a third process would write at the same time."""
    path, held = tmp_path / "folder" / "file", threading.Event()

    def fail() -> None:
        held.set()
        time.sleep(0.5)
        raise ValueError

    def write() -> None:
        assert (path.parent / "lock").exists()
        path.write_text("whole")

    pid = os.fork()
    if not pid:  # the one that fails
        try:
            write_once(path, fail)
        finally:
            os._exit(0)
    while not (path.parent / "lock").exists():
        time.sleep(0.01)
    write_once(path, write)
    os.waitpid(pid, 0)
    assert path.read_text() == "whole"
