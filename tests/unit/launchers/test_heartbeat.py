"""A thread detects a process without progress."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_for

from lockstep.launchers import heartbeat
from lockstep.launchers.heartbeat import Heartbeat


def test_it_bites_when_the_next_sign_is_late_and_leaves_the_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SHUTDOWN_GRACE", 0.02)
    heart, given_up = Heartbeat(), list[BaseException]()
    heart.start(3.0, tmp_path / "train.log", given_up.append)
    for batch in range(4):
        time.sleep(0.1)
        heart.beat(f"in training batch {batch}", 3.0)
    assert given_up == []
    wait_for(lambda: given_up)
    heart.stop()
    reason = "no progress for 3 s, in training batch 3; the stacks of its threads are in train.log"
    assert [str(error) for error in given_up] == [reason]
    log = (tmp_path / "train.log").read_text()
    assert log.startswith(reason)
    assert Path(__file__).name in log
    assert log.count("hread 0x") >= 2


STOPPED = """
import pathlib, sys, time
from lockstep.launchers import heartbeat
heartbeat.SHUTDOWN_GRACE, heartbeat._AWAY = 0.1, 1.0
heart = heartbeat.Heartbeat()
heart.start(2.0, pathlib.Path(sys.argv[1]), print)
print("begun", flush=True)
sys.stdin.readline()
time.sleep(1.0)
heart.beat("in training batch 1", 2.0)
heart.stop()
"""


def test_the_time_for_which_a_process_is_stopped_does_not_count(tmp_path: Path) -> None:
    """As by Ctrl-Z and fg, or by a queue that suspends its job: the batch under way takes as long as any."""
    command = [sys.executable, "-c", STOPPED, str(tmp_path / "train.log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(3.0)
        process.send_signal(signal.SIGCONT)
        assert process.communicate("go\n", timeout=60)[0] == ""
    assert not (tmp_path / "train.log").exists()


def test_who_moves_after_all_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SHUTDOWN_GRACE", 3.0)
    heart, given_up = Heartbeat(), list[BaseException]()
    heart.start(0.05, tmp_path / "train.log", given_up.append)
    wait_for((tmp_path / "train.log").exists)
    heart.beat("in training batch 8", 60)
    time.sleep(3.5)
    heart.stop()
    assert given_up == []
