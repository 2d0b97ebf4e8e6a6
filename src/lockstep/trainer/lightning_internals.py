"""Where Lightning's own way with signals is taken out: there is no public seam for it.

It registers a SIGTERM handler that broadcasts inside the handler, and, with more than one process, broadcasts a flag and
waits for the device before every training batch (lightning/pytorch/loops/training_epoch_loop.py,
_broadcast_sigterm_tensor; Lightning issue 21487). lockstep.callbacks.Preemption does both better.
"""

from typing import Any

from lightning import Trainer


def disable_sigterm_handling(trainer: Trainer) -> None:
    """Leaves a Lightning that has none of this as it is."""
    for owner, name in (
        (getattr(trainer, "_signal_connector", None), "register_signal_handlers"),
        (trainer.fit_loop.epoch_loop, "_broadcast_sigterm_tensor"),
    ):
        if hasattr(owner, name):
            setattr(owner, name, _nothing)


def _nothing(*_: Any) -> None:
    pass
