"""What does not hold on a file system is said in one line; on this one everything holds."""

import errno
import os
from pathlib import Path

import pytest

from lockstep.atomic_files import sync_folder
from lockstep.checkpointing import read_checkpoint, write_checkpoint
from lockstep.extras.mirror.storage import shortcomings


def test_here_all_of_it_holds_and_nothing_is_left(tmp_path: Path) -> None:
    assert [*shortcomings(tmp_path)] == []
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_can_not_be_synced_is_said_and_does_not_keep_a_checkpoint_from_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CIFS: fsync(2) of a folder is EINVAL there."""
    fsync = os.fsync

    def sync_files_alone(descriptor: int, error: int = errno.EINVAL) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(error, os.strerror(error))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_files_alone)
    (line,) = shortcomings(tmp_path)
    assert line.startswith(f"{tmp_path}: this file system can't sync a folder (Invalid argument); after a loss of power")
    write_checkpoint({"step": 1}, tmp_path / "last.ckpt")
    assert read_checkpoint("last", tmp_path / "last.ckpt") == {"step": 1}
    monkeypatch.setattr(os, "fsync", lambda descriptor: sync_files_alone(descriptor, errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):  # that is no lack but a failure
        sync_folder(tmp_path)
