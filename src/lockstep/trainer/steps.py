"""Beginnings and ends of epochs and optimizer steps: with accumulated gradients a step has several batches."""

from typing import Any


def batches_trained(trainer: Any) -> int:
    """Return how many batches of the present epoch it has trained on; 0 between two epochs."""
    loop = trainer.fit_loop
    epoch = loop.epoch_progress.current
    return loop.epoch_loop.batch_progress.current.processed if epoch.started > epoch.completed else 0


def begins_step(trainer: Any, batch_idx: int) -> bool:
    """Return whether this is its first batch; nothing is accumulated before it."""
    return batch_idx % trainer.accumulate_grad_batches == 0


def ends_step(trainer: Any, batch_idx: int) -> bool:
    """Return whether this is its last batch; an epoch's last step may have fewer."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


def log_metrics(trainer: Any, metrics: dict[str, float]) -> None:
    """Log metrics at the latest step. Steps are counted from 0 in a log, by Lightning's metrics too: before a checkpoint of n
    steps, the last is n - 1. With manual optimization batches are counted: a model may step less often, or more."""
    by_hand = not trainer.lightning_module.automatic_optimization
    step = trainer.fit_loop.epoch_loop.total_batch_idx if by_hand else trainer.global_step - 1
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=step)
