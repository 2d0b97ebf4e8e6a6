"""How the end of a run is judged."""

import errno
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from saved_run import save_run
from torch.utils.data import DataLoader, Dataset

from lockstep.atomic_files import read_json
from lockstep.callbacks import SteppedRate
from lockstep.checkpointing import write_checkpoint
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.launchers import outcome
from lockstep.launchers.outcome import Outcome, classify_error
from lockstep.launchers.stop_signals import Preempted
from lockstep.runs import record
from lockstep.runs.directory import COULD_NOT_START
from lockstep.runs.run import Run


def prepared(cfg: DictConfig, is_resumed: bool = False) -> Run:
    return Run(cfg, Plan.from_config(cfg), is_resumed=is_resumed)


@pytest.mark.parametrize(("size", "is_said"), [("2", True), ("", False)])
def test_ranks_of_a_program_that_nobody_knows_say_that_each_trains_by_itself(
    size: str, is_said: bool, tmp_path: Path, compose: Callable[..., DictConfig], caplog: pytest.LogCaptureFixture, started: Any
) -> None:
    started({"WORLD_SIZE": size, "RANK": "0", "LOCAL_RANK": "0"})
    with caplog.at_level("WARNING"), prepared(compose("trainer=cpu", run_dir=tmp_path)) as run:
        run.result = 1.0
    assert any(text.startswith("WORLD_SIZE=2: is set by neither torchrun nor srun") for text in caplog.messages) == is_said


def test_a_refusal_is_a_run_that_could_not_start_unless_it_has_made_a_step() -> None:
    assert classify_error(ConfigError("seed=-1: no"), 1) == Outcome(code=2, reason="seed=-1: no", rank=1, is_final=True)
    assert classify_error(ConfigError("cat.png: not a readable image"), 0, has_stepped=True).code == 1


@pytest.mark.parametrize(("steps", "code"), [(0, 2), (1, 1)])
def test_a_refusal_is_a_failure_from_the_first_step_on(
    steps: int, code: int, tmp_path: Path, compose: Callable[..., DictConfig]
) -> None:
    folder = tmp_path / "run"
    run = prepared(compose("trainer.accelerator=cpu", run_dir=folder))
    run.__enter__()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    trainer: Any = SimpleNamespace(
        optimizers=[optimizer], lr_scheduler_configs=[], ckpt_path=None, default_root_dir=".", is_global_zero=True
    )
    rate = SteppedRate()
    rate.on_fit_start(trainer, Any)
    rate.on_train_start(trainer, Any)
    for _ in range(steps):
        optimizer.step()
    with pytest.raises(SystemExit) as left:
        run.__exit__(ConfigError, ConfigError("cat.png: not a readable image"), None)
    assert left.value.code == code
    status = json.loads((folder / "status.json").read_text())
    assert (status["status"], COULD_NOT_START in status) == ("failed", code == 2)


def test_an_exit_on_the_way_is_a_failure_that_says_where() -> None:
    with pytest.raises(SystemExit) as left:
        sys.exit(2)
    line = inspect.currentframe().f_lineno - 1
    expected = Outcome(code=1, reason=f"rank 3: sys.exit(2) was called in {__file__}, line {line}", rank=3)
    assert classify_error(left.value, 3) == expected
    assert classify_error(SystemExit(), 0).reason == "rank 0: sys.exit() was called"


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        raise ValueError("shard 7\nis broken")


def test_what_a_data_worker_raises_is_named_without_its_traceback() -> None:
    """A sweep's table shows the first words of a reason."""
    with pytest.raises(ValueError, match="Original Traceback") as raised:
        next(iter(DataLoader(Broken(), num_workers=1)))
    outcome = classify_error(raised.value, 1)
    assert outcome.reason == "rank 1: ValueError: shard 7\nis broken (in DataLoader worker process 0)"
    assert outcome.traceback is not None
    assert "__getitem__" in outcome.traceback


def test_full_shared_memory_is_said_where_it_may_be_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(outcome, "_SHARED_MEMORY", str(tmp_path))
    said = "rank 0: OSError: [Errno 28] No space left on device"
    assert classify_error(error, 0) == Outcome(code=1, reason=said, rank=0)  # and no traceback: it is no bug
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
    words = f"; {tmp_path}, through which data workers hand over their batches, is full: "
    words += "use a larger one (docker run --shm-size), or datamodule.num_workers=0"
    assert classify_error(error, 0).reason == said + words
    assert classify_error(ValueError("x"), 0).reason == "rank 0: ValueError: x"


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (KeyboardInterrupt(), signal.SIGINT),
        (Preempted(signal.SIGTERM), signal.SIGTERM),
        (Preempted(signal.SIGUSR1), signal.SIGUSR1),
    ],
)
def test_who_is_asked_to_stop_can_be_resumed(error: BaseException, number: signal.Signals) -> None:
    expected = Outcome(code=75, reason=f"preempted by {number.name}", rank=1, signal=number)
    assert classify_error(error, 1) == expected


GLHF = "[.../gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:24221. Check the logs. GLHF!"


def test_who_loses_its_peer_is_not_to_blame() -> None:
    reason = "rank 0 has lost its connection to another rank; the logs of the others may say why"
    assert classify_error(RuntimeError(GLHF), 0) == Outcome(code=1, reason=reason, rank=0, has_lost_rank=True)


TAKEN = "The server socket has failed to listen on any local network address. port: 15077, useIpv6: false, code: -98, name: "
TAKEN += "EADDRINUSE, message: address already in use"


def test_a_port_that_is_taken_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "15077")
    outcome = classify_error(RuntimeError(TAKEN), 0)
    assert (outcome.code, outcome.traceback) == (2, None)
    assert (outcome.reason or "").startswith("MASTER_PORT=15077: another program has this port on ")


SLOW = "[.../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete"


def test_who_has_waited_too_long_names_the_key_and_where_it_was() -> None:
    outcome = classify_error(RuntimeError(SLOW), 1)
    assert outcome.reason == (
        "rank 1 has waited for another one as long as trainer.strategy.timeout allows: that one hangs, or the connection to it "
        "is cut; the logs of the others may say why"
    )
    assert "Timed out waiting 5000ms" in (outcome.traceback or "")


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
    assert left.value.code == 1


def test_a_run_goes_on_from_a_checkpoint_of_its_own_whatever_the_time(tmp_path: Path, compose: Callable[..., DictConfig]) -> None:
    """The clock of a file server may be hours apart: the run's own is of the past, the other's of the future."""
    own, other = (tmp_path / "checkpoints" / name for name in ("previous.ckpt", "last.ckpt"))
    save_run(tmp_path, run_id="this run")
    for path, run_id, seconds in ((own, "this run", 0), (other, "another run", 2e9)):
        write_checkpoint({"callbacks": {"LastCheckpoint": {"run_id": run_id}}}, path)
        os.utime(path, (seconds, seconds))
    cfg = compose("trainer.accelerator=cpu", run_dir=tmp_path)
    with prepared(cfg, is_resumed=True) as run:
        assert run.checkpoint == own
    assert {path.name for path in own.parent.iterdir()} == {"previous.ckpt", "last.ckpt.foreign"}
