"""The exit code and the status of a run that ends with an error."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from lockstep.atomic_files import read_json
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.launchers.heartbeat import HEARTBEAT
from lockstep.launchers.stop_signals import Preempted
from lockstep.runs import record
from lockstep.runs.run import Run


@pytest.fixture
def run(tmp_path: Path, compose: Callable[..., DictConfig]) -> Run:
    cfg = compose("trainer.accelerator=cpu", run_dir=tmp_path)
    return Run(cfg, Plan.from_config(cfg)).__enter__()


def end(run: Run, error: BaseException) -> tuple[object, dict[str, Any]]:
    """Return the exit code and the status."""
    with pytest.raises(SystemExit) as left:
        run.__exit__(type(error), error, None)
    return left.value.code, read_json(run.directory / "status.json") or {}


@pytest.mark.parametrize(("has_stepped", "code"), [(False, 2), (True, 1)])
def test_a_refusal_is_a_failure_from_the_first_step_on(has_stepped: bool, code: int, run: Run) -> None:
    HEARTBEAT.has_stepped = has_stepped
    ended, status = end(run, ConfigError("cat.png: not a readable image"))
    assert (ended, status["status"], record.COULD_NOT_START in status) == (code, "failed", code == 2)


def test_a_stop_request_leaves_the_failure_of_another_rank_on_record(run: Run) -> None:
    """torchrun sends SIGTERM to the ranks that still run."""
    record.write_failure(run.directory, "rank 1: RuntimeError: no data", 1)
    code, status = end(run, Preempted(signal.SIGTERM))
    assert (code, status["status"], status["reason"], status["rank"]) == (75, "failed", "rank 1: RuntimeError: no data", 1)
