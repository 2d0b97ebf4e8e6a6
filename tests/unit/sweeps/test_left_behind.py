"""Processes of a job's ranks end with the job."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from waiting import wait_for

from lockstep.sweeps.local import LocalHandle, Pool


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_rank_that_hears_nothing_ends_with_its_job(tmp_path: Path) -> None:
    """Suspended, or stuck in a library with Python's lock: no thread of it saw that its parent was gone."""
    waits = "setsid sleep 300 & echo $! > pid; sleep 300"
    pool = Pool(("0",))
    process: Any = subprocess.Popen(["sh", "-c", waits], cwd=tmp_path, start_new_session=True)
    attempt = LocalHandle(process, pool, pool.take(1))
    wait_for(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text().endswith("\n"))
    rank = int((tmp_path / "pid").read_text())
    wait_for(lambda: os.getsid(rank) == rank)
    os.kill(rank, signal.SIGSTOP)
    attempt.stop(kill=True)
    wait_for(lambda: attempt.poll() is not None)
    wait_for(lambda: not lives(rank), seconds=10)
