"""Lightning's own way with signals is still there to be taken out; tests/distributed/test_preemption.py shows that it is."""

import inspect

from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector


def test_lightning_still_broadcasts_before_every_batch() -> None:
    """When this fails, Lightning issue 21487 is mended: src/lockstep/lightning_signals.py can lose that part, or go."""
    assert "_broadcast_sigterm_tensor" in vars(_TrainingEpochLoop)
    assert "self._broadcast_sigterm_tensor()" in inspect.getsource(_TrainingEpochLoop.advance)


def test_lightning_still_handles_sigterm_itself() -> None:
    """When this fails, see whether it still does so, and under which name."""
    assert "signal.SIGTERM" in inspect.getsource(_SignalConnector.register_signal_handlers)
    assert "broadcast" in inspect.getsource(_SignalConnector._sigterm_notifier_fn)
