"""Where an epoch and an optimizer step begin and end: with accumulated gradients a step has several batches."""

from typing import Any


def batches_trained(trainer: Any) -> int:
    """Returns how many batches of the epoch that training is within it has trained on; 0 between two epochs."""
    loop = trainer.fit_loop
    epoch = loop.epoch_progress.current
    return loop.epoch_loop.batch_progress.current.processed if epoch.started > epoch.completed else 0


def begins_step(trainer: Any, batch_idx: int) -> bool:
    """Is this its first batch? Then, before it, nothing is accumulated."""
    return batch_idx % trainer.accumulate_grad_batches == 0


def ends_step(trainer: Any, batch_idx: int) -> bool:
    """Is this its last batch? An epoch's last step may have fewer."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


def log_metrics(trainer: Any, metrics: dict[str, float]) -> None:
    """Logs metrics at the latest step. Steps are counted from 0 in a log, by Lightning's metrics too: what a checkpoint of n
    steps comes after stands before n. By hand a model steps less often than it takes batches, or more, and they are counted."""
    by_hand = not trainer.lightning_module.automatic_optimization
    step = trainer.fit_loop.epoch_loop.total_batch_idx if by_hand else trainer.global_step - 1
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=step)
