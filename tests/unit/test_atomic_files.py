"""Files that several processes read and write."""

import errno
import os
from pathlib import Path

import pytest

from lockstep.atomic_files import sync_folder


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
