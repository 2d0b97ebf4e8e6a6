"""Communication is what a rank waits for after its last gradient, be it for a slower rank."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fits import become_rank, prepared
from ranks import in_ranks

from lockstep.extras.profiling.step_time import PARTS, StepTime

pytestmark = pytest.mark.slow
WAIT = 0.2  # seconds
LENGTH = ("trainer.max_epochs=2", "datamodule.batch_size=150", "trainer.log_every_n_steps=50")  # a log would wait in "forward"
OPTIONS = ("trainer.devices=2", "callbacks.step_time.every_n_steps=1", "guards.checkpoint.every_n_steps=null")


def train(rank: int, world_size: int, folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    become_rank(rank, world_size)
    datamodule, model, trainer = prepared(folder / "run", *OPTIONS, *LENGTH)
    forward = model.forward
    if rank == 1:
        model.forward = lambda inputs: time.sleep(WAIT) or forward(inputs)
    trainer.fit(model, datamodule)
    callback = next(callback for callback in trainer.callbacks if isinstance(callback, StepTime))
    return dict(zip(PARTS, (callback._seconds / callback._count).tolist(), strict=True)), callback.facts()


def test_the_faster_rank_waits_in_communication(tmp_path: Path) -> None:
    (fast, record), (slow, same) = in_ranks(2, partial(train, folder=tmp_path), tmp_path)
    assert slow["forward"] >= WAIT
    assert fast["communication"] > WAIT / 2
    assert fast["communication"] - slow["communication"] > WAIT / 4
    assert record == same
