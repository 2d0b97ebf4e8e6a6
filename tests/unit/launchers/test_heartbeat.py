"""Who makes no progress is found by a thread of its own."""

import time
from pathlib import Path

import pytest
from waiting import wait_for

from lockstep.launchers import heartbeat
from lockstep.launchers.heartbeat import Heartbeat


def test_it_bites_when_the_next_sign_is_late_and_leaves_the_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SHUTDOWN_GRACE", 0.02)
    heart, given_up = Heartbeat(), list[str]()
    heart.start(3.0, tmp_path / "train.log", given_up.append)
    for batch in range(4):
        time.sleep(0.1)
        heart.beat(f"in training batch {batch}", 3.0)
    assert given_up == []
    wait_for(lambda: given_up)
    heart.stop()
    reason = "no progress for 3 s, in training batch 3; the stacks of its threads are in train.log"
    assert given_up[0] == reason
    log = (tmp_path / "train.log").read_text()
    assert log.startswith(reason)
    assert Path(__file__).name in log
    assert log.count("hread 0x") >= 2


def test_who_moves_after_all_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SHUTDOWN_GRACE", 3.0)
    heart, given_up = Heartbeat(), list[str]()
    heart.start(0.05, tmp_path / "train.log", given_up.append)
    wait_for((tmp_path / "train.log").exists)
    heart.beat("in training batch 8", 60)
    time.sleep(3.5)
    heart.stop()
    assert given_up == []
