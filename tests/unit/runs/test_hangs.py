"""A run that is stuck, wherever that is, ends: when it is asked to, and when nobody asks. Its main thread waits in C code,
where no handler of Python's is run, as in a collective that waits for another rank."""

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from in_process import SMALL, composed
from lightning import Callback, LightningModule, Trainer

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.runs.run import Run

pytestmark = pytest.mark.slow
DEADLINE = 1  # seconds


class Stuck(Callback):
    """For ever, at one moment of a run."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def at(self, moment: str, folder: Path) -> None:
        if moment == self.moment:
            (folder / "stuck").touch()
            lock, c = ctypes.create_string_buffer(64), ctypes.CDLL(None)
            c.pthread_mutex_lock(lock)
            c.pthread_mutex_lock(lock)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            self.at("training", Path(trainer.default_root_dir))

    def on_validation_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.at("validation", Path(trainer.default_root_dir))

    def on_test_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.at("test", Path(trainer.default_root_dir))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.at(f"teardown of {stage.lower()}", Path(trainer.default_root_dir))


def run(folder: Path, moment: str, *overrides: str) -> None:
    sys.stderr = (folder / "errors").open("w")
    multiprocessing.set_start_method("fork", force=True)  # of data workers, as in a process of its own
    stuck = Stuck(moment)
    cfg = composed(*SMALL, "trainer.max_epochs=1", "datamodule.num_workers=1", *overrides, run_dir=folder)
    with Run(cfg, Plan.from_config(cfg)) as run:
        stuck.at("start", folder)
        datamodule, model, trainer = build(cfg, run.plan)
        trainer.callbacks.insert(0, stuck)  # pyright: ignore[reportAttributeAccessIssue]
        trainer.fit(model, datamodule)
        trainer.test(model, datamodule, verbose=False)


def ended(folder: Path, moment: str, *overrides: str, ask: int | None = None) -> tuple[int | None, dict[str, Any], float]:
    """The exit code, the status, and the seconds from when it was stuck to the end."""
    process = multiprocessing.get_context("forkserver").Process(target=run, args=(folder, moment, *overrides))
    process.start()
    try:
        until = time.monotonic() + 120
        while not (folder / "stuck").exists() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.5)  # from its mark into C code
        since = time.monotonic()
        if ask is not None:
            os.kill(process.pid or 0, ask)
        process.join(30)
        return process.exitcode, json.loads((folder / "status.json").read_text()), time.monotonic() - since
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("moment", ["start", "training", "teardown of test"])
def test_it_ends_within_the_deadline_when_asked_to(moment: str, tmp_path: Path) -> None:
    code, status, seconds = ended(tmp_path, moment, f"guards.preemption.deadline={DEADLINE}", ask=signal.SIGTERM)
    reason = f"preempted by SIGTERM, without a new checkpoint: no answer within {DEADLINE} s"
    assert (code, status["status"], status["reason"]) == (75, "preempted", reason)
    assert DEADLINE <= seconds < DEADLINE + 20
    log = (tmp_path / "train.log").read_text()
    assert reason in log
    assert Path(__file__).name in log  # where it was stuck
    assert f"The run was {reason}." in (tmp_path / "errors").read_text()


@pytest.mark.parametrize(
    ("moment", "where", "limits"),
    [
        ("start", "at the start", "seconds:600,seconds_to_first_batch:5"),
        ("training", "after training batch 2 of epoch 1", "seconds:5,seconds_to_first_batch:60"),
    ],
)
def test_it_ends_when_it_makes_no_progress(moment: str, where: str, limits: str, tmp_path: Path) -> None:
    code, status, _ = ended(tmp_path, moment, f"guards.watchdog={{_target_:lockstep.callbacks.Watchdog,{limits}}}")
    reason = f"rank 0: no progress for 5 s, {where}; the stacks of its threads are in train.log"
    assert (code, status["status"], status["reason"], status["rank"]) == (1, "failed", reason, 0)
    assert (tmp_path / "errors").read_text() == f"The run failed: {reason}. Logs: {tmp_path}\n"
