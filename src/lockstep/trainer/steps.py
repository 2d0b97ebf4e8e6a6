"""Where an optimizer step begins and ends: with accumulated gradients it has several batches."""

from typing import Any


def begins_step(trainer: Any, batch_idx: int) -> bool:
    """Is this its first batch? Then, before it, nothing is accumulated."""
    return batch_idx % trainer.accumulate_grad_batches == 0


def ends_step(trainer: Any, batch_idx: int) -> bool:
    """Is this its last batch? An epoch's last step may have fewer."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
