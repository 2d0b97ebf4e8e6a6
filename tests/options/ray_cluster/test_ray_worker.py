"""What a worker of Ray's does with its job, without Ray."""

import signal
from pathlib import Path

import pytest

from lockstep.ray_cluster.worker import JobWorker


def test_a_job_is_asked_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    worker = JobWorker(str(tmp_path))
    worker.ask_to_end()
    assert worker.run(["sleep", "50"], {}, str(tmp_path / "output")) == -signal.SIGTERM
