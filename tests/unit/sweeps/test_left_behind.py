"""What a job's own code has started in a session of its own ends with the job."""

import os
import signal
import subprocess
from pathlib import Path

from waiting import wait_for

from lockstep.launchers.environment import JOB_MARK
from lockstep.sweeps.local import LocalHandle, Pool

LEAVES = "setsid sleep 300 & echo $! > pid"


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def left_by(folder: Path, mark: str) -> tuple[LocalHandle, int]:
    pool = Pool(("0",))
    folder.mkdir()
    process = subprocess.Popen(["sh", "-c", LEAVES], cwd=folder, env=os.environ | {JOB_MARK: mark}, start_new_session=True)
    attempt = LocalHandle(process, pool, pool.take(1), mark)
    wait_for(lambda: process.poll() is not None)
    return attempt, int((folder / "pid").read_text())


def test_a_rank_that_hears_nothing_ends_with_its_job(tmp_path: Path) -> None:
    """Suspended, or stuck in a library with Python's lock: no thread of it saw that its parent was gone."""
    waits = "setsid sleep 300 & echo $! > pid; sleep 300"
    pool = Pool(("0",))
    process = subprocess.Popen(["sh", "-c", waits], cwd=tmp_path, start_new_session=True)
    attempt = LocalHandle(process, pool, pool.take(1), "unmarked")
    wait_for(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text().endswith("\n"))
    rank = int((tmp_path / "pid").read_text())
    wait_for(lambda: os.getsid(rank) == rank)
    os.kill(rank, signal.SIGSTOP)
    attempt.stop(kill=True)
    wait_for(lambda: attempt.poll() is not None)
    wait_for(lambda: not lives(rank), seconds=10)


def test_a_session_of_its_own_is_no_way_out(tmp_path: Path) -> None:
    attempt, left = left_by(tmp_path / "one", "a")
    other, stays = left_by(tmp_path / "two", "ab")
    for pid in (left, stays):
        wait_for(lambda pid=pid: os.getsid(pid) == pid)
    assert attempt.poll() is not None
    wait_for(lambda: not lives(left))
    assert lives(stays)
    assert other.poll() is not None
    wait_for(lambda: not lives(stays))
