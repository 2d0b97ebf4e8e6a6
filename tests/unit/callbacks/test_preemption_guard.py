"""Being asked to stop while the run is failing already; the rest needs ranks, or a trainer: tests/distributed."""

import os
import signal

import pytest
from lightning import LightningModule, Trainer

from lockstep.callbacks import Preemption
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
