"""A directory has one holder, and is free when that process has ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.errors import ConfigError
from lockstep.runs.locks import Lock, is_held

HOLDER = """
import sys
from pathlib import Path
from lockstep.runs.locks import Lock

Lock(Path(sys.argv[1]), "key")
print(flush=True)
input()
"""


def test_a_directory_has_one_holder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert is_held(tmp_path)
        with pytest.raises(ConfigError, match=rf"^resume={tmp_path}: is being run by process {other.pid} on "):
            Lock(tmp_path, "resume")
        other.kill()
        other.wait()
    assert not is_held(tmp_path)
    lock = Lock(tmp_path, "resume")
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_held(tmp_path / "link")  # by another name; to open the lock file once more would give it up
    lock.close()
    assert not is_held(tmp_path)


def test_who_wants_to_run_waits_for_a_process_that_is_leaving(tmp_path: Path) -> None:
    """A run that was stopped, and is continued at once, was refused where its first process was slow to end."""
    holder = HOLDER.replace("input()", "import time; time.sleep(1.0)")
    with subprocess.Popen([sys.executable, "-c", holder, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        Lock(tmp_path, "resume").close()
