"""Guards: what the watchdog allows, what noise depends on, and a request to stop while the run is failing already."""

import os
import random
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from in_process import prepared
from lightning import LightningModule, Trainer

from lockstep.callbacks import CounterBasedRandomness, Preemption
from lockstep.launchers.heartbeat import HEARTBEAT
from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted


def test_a_failure_is_not_turned_into_a_preemption() -> None:
    """torchrun sends SIGTERM to the ranks that are left when one was killed, which they are about to report."""
    STOP_SIGNALS.listen()
    STOP_SIGNALS.deferred = True
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    Preemption().on_exception(trainer, LightningModule(), RuntimeError("connection closed by peer"))
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
    assert STOP_SIGNALS.received == [signal.SIGTERM] * 2
    STOP_SIGNALS.stop_listening()
    STOP_SIGNALS.listen()
    with pytest.raises(Preempted):
        os.kill(os.getpid(), signal.SIGTERM)


def test_noise_is_a_function_of_seed_epoch_batch_and_rank() -> None:
    def draws(seed: int, epoch: int, batch: int, rank: int) -> tuple[float, float, float]:
        trainer: Any = SimpleNamespace(
            current_epoch=epoch,
            strategy=SimpleNamespace(root_device=torch.device("cpu")),
            distributed_sampler_kwargs={"rank": rank, "num_replicas": 2},
        )
        CounterBasedRandomness(seed).on_train_batch_start(trainer, LightningModule(), None, batch)
        return torch.rand(()).item(), numpy.random.rand(), random.random()

    keys = [(seed, epoch, batch, rank) for seed in (0, 1) for epoch in (0, 1) for batch in (0, 1, 2) for rank in (0, 1)]
    first = [draws(*key) for key in keys]
    for generator in zip(*first, strict=True):
        assert len(set(generator)) == len(keys)
    assert [draws(*key) for key in reversed(keys)] == first[::-1]


FIRST, LATER = 1800, 600


def test_the_longer_limit_holds_until_a_batch_of_each_stage_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[tuple[str, float]] = []
    monkeypatch.setattr(HEARTBEAT, "beat", lambda where, limit: beats.append((where, limit)))
    dog = f"guards.watchdog={{_target_:lockstep.callbacks.Watchdog,seconds:{LATER},seconds_to_first_batch:{FIRST}}}"
    few = ("trainer.max_epochs=2", "trainer.limit_train_batches=2", "trainer.limit_val_batches=1", "trainer.limit_test_batches=2")
    datamodule, model, trainer = prepared(tmp_path, dog, *few)
    trainer.fit(model, datamodule)
    trainer.test(model, datamodule, verbose=False)
    assert [where for where, limit in beats if limit != LATER] == [
        *("before the first batch to fit", "in training batch 1 of epoch 1"),
        *("before the first validation batch of epoch 1", "before the first batch to test"),
    ]
    assert {limit for _, limit in beats} == {FIRST, LATER}
    others = [where for where, limit in beats if limit == LATER]
    for epoch in (1, 2):
        assert {f"after training batch {batch} of epoch {epoch}" for batch in (1, 2)} <= {*others}
        assert {f"in validation, in epoch {epoch}", f"after validation, in epoch {epoch}"} <= {*others}
    assert others[-4:] == ["at the end of fit", "in the test", "in the test", "at the end of test"]
