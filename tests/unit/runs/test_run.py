"""How the end of a run is judged."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from lockstep.atomic_files import read_json
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.launchers.heartbeat import HEARTBEAT
from lockstep.launchers.stop_signals import Preempted
from lockstep.runs import record
from lockstep.runs.run import Run


def prepared(cfg: DictConfig) -> Run:
    return Run(cfg, Plan.from_config(cfg))


@pytest.mark.parametrize(("has_stepped", "code"), [(False, 2), (True, 1)])
def test_a_refusal_is_a_failure_from_the_first_step_on(
    has_stepped: bool, code: int, tmp_path: Path, compose: Callable[..., DictConfig]
) -> None:
    run = prepared(compose("trainer.accelerator=cpu", run_dir=tmp_path))
    run.__enter__()
    HEARTBEAT.has_stepped = has_stepped
    with pytest.raises(SystemExit) as left:
        run.__exit__(ConfigError, ConfigError("cat.png: not a readable image"), None)
    assert left.value.code == code
    status = read_json(tmp_path / "status.json") or {}
    assert (status["status"], record.COULD_NOT_START in status) == ("failed", code == 2)


def test_a_rank_that_is_asked_to_stop_since_another_has_failed_leaves_that_reason(
    tmp_path: Path, compose: Callable[..., DictConfig]
) -> None:
    """By torchrun, which sends SIGTERM to the others."""
    run = prepared(compose("trainer.accelerator=cpu", run_dir=tmp_path))
    run.__enter__()
    record.write_failure(tmp_path, "rank 1: RuntimeError: no data", 1)
    with pytest.raises(SystemExit) as left:
        run.__exit__(Preempted, Preempted(signal.SIGTERM), None)
    status = read_json(tmp_path / "status.json") or {}
    assert (status["status"], status["reason"], status["rank"]) == ("failed", "rank 1: RuntimeError: no data", 1)
    assert left.value.code == 75
