"""What a worker of Ray's does with its job, without Ray."""

import signal
from pathlib import Path
from typing import Any

import pytest

from lockstep.extras.ray_cluster.worker import JobWorker

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("handler", "code"), [(signal.SIG_IGN, -signal.SIGTERM), (signal.default_int_handler, -signal.SIGINT)], ids=["ignored", "not"]
)
def test_a_job_is_asked_to_end_where_interrupts_are_ignored_too(
    handler: Any, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGINT, handler)
    try:
        worker = JobWorker(str(tmp_path))
        worker.ask_to_end()
        assert worker.run(["sleep", "50"], {}, str(tmp_path / "output")) == code
    finally:
        signal.signal(signal.SIGINT, before)
