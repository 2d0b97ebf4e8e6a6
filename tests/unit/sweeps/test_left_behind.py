"""What a job's own code has started in a session of its own ends with the job."""

import contextlib
import os
import subprocess
from pathlib import Path

from waiting import wait_for

from lockstep.launchers.environment import JOB_MARK
from lockstep.sweeps.local import LocalAttempt, Pool

LEAVES = "setsid sleep 300 & echo $! > pid"


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def left_by(folder: Path, mark: str) -> tuple[LocalAttempt, int]:
    pool = Pool(("0",))
    folder.mkdir()
    process = subprocess.Popen(["sh", "-c", LEAVES], cwd=folder, env=os.environ | {JOB_MARK: mark}, start_new_session=True)
    attempt = LocalAttempt(process, pool, pool.take(1), mark, contextlib.ExitStack())
    wait_for(lambda: process.poll() is not None)
    return attempt, int((folder / "pid").read_text())


def test_a_session_of_its_own_is_no_way_out(tmp_path: Path) -> None:
    attempt, left = left_by(tmp_path / "one", "a")
    other, stays = left_by(tmp_path / "two", "ab")
    for pid in (left, stays):
        wait_for(lambda pid=pid: os.getsid(pid) == pid)
    assert attempt.reap() is not None
    wait_for(lambda: not lives(left))
    assert lives(stays)
    assert other.reap() is not None
    wait_for(lambda: not lives(stays))
