"""The SLURM job that this process is a part of."""

import os
import signal
from pathlib import Path

import pytest

from lockstep.launchers.cluster import queue


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `scontrol` was called with, a line a call."""
    program, calls = tmp_path / "scontrol", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n[ "$2" = 13 ] && echo "job 13 can not be" >&2 && exit 1\nexit 0\n')
    program.chmod(0o755)
    calls.touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return calls


def test_only_the_warning_before_a_time_limit_requeues(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert queue().requeue_when_warned(signal.SIGUSR1, True) is None  # no SLURM
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, 0):
        assert queue().requeue_when_warned(number, True) is None
    assert calls.read_text() == ""
    assert queue().requeue_when_warned(signal.SIGUSR1, True) == "SLURM job 12 is requeued"
    assert calls.read_text() == "requeue 12\n"
    said = "SLURM job 12 was not requeued: it would begin anew, in another directory; give hydra.run.dir"
    assert queue().requeue_when_warned(signal.SIGUSR1, False) == said
    assert calls.read_text() == "requeue 12\n"


def test_a_requeue_that_fails_is_said(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    assert queue().requeue_when_warned(signal.SIGUSR1, True) == "SLURM job 13 was not requeued: scontrol: job 13 can not be"
    (calls.parent / "scontrol").unlink()
    monkeypatch.setenv("PATH", str(calls.parent))
    assert (queue().requeue_when_warned(signal.SIGUSR1, True) or "").startswith("SLURM job 13 was not requeued: ")
