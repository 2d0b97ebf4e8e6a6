"""Apply a forked run's config where restoring the checkpoint would bring back the source run's options."""

import logging
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig
from omegaconf import DictConfig
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lockstep.callbacks.checkpoints import rewind_progress
from lockstep.callbacks.every_run import SteppedRate
from lockstep.checkpointing import read_checkpoint
from lockstep.runs.resume import check_length
from lockstep.trainer.steps import batches_trained

log = logging.getLogger(__name__)
_LOADING = ("num_workers", "pin_memory")  # datamodule options that do not change batches


def forked_from(cfg: DictConfig, checkpoint: Path) -> "Forked":
    """Return the callback of a run that starts from another run's checkpoint.

    Raise ConfigError if the checkpoint's epoch is larger than trainer.max_epochs.
    """
    content = read_checkpoint("fork", checkpoint, whole=())
    check_length(cfg, content.get("epoch", 0), checkpoint)
    log.info(f"Forked from {checkpoint}, at step {content.get('global_step', 0)}")
    return Forked(cfg.forked_from.changed)


class Forked(Callback):
    """Set the configured options of optimizers before the first step, and advance each schedule to where it would be if it had
    been used from step 0. Do nothing if no key has changed; the run then equals the source run bit for bit.

    Args:
        changed: Keys whose values differ from the source run's.
    """

    def __init__(self, changed: Sequence[str]) -> None:
        self._changed = changed
        self._has_trained = False
        self._checkpoint: dict[str, Any] = {}
        self._options: list[list[dict[str, Any]]] = []

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and self._changed:
            self._checkpoint = checkpoint
            if keys := [key for key in self._changed if _changes_batches(key)]:
                _begin_epoch_again(checkpoint, keys)

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Record the configured options of the optimizers, which the checkpoint has not overwritten yet."""
        if not self._checkpoint:
            return
        self._options = [[_without_params(group) for group in optimizer.param_groups] for optimizer in trainer.optimizers]
        self._checkpoint["lr_schedulers"] = []
        if not self._has_same_parameters(trainer.optimizers):
            log.warning("Not carried over from the checkpoint: the optimizer's state, which is of another one or of other groups")
            self._checkpoint["optimizer_states"] = []

    def _has_same_parameters(self, optimizers: Sequence[Optimizer]) -> bool:
        """Return whether the checkpoint's optimizers have the same classes and parameter groups."""
        trained_with = self._checkpoint.get("callbacks", {}).get("SteppedRate", {}).get("trained_with", {})
        names = [type(one).__name__ for one in optimizers]
        before = [_sizes(state["param_groups"]) for state in self._checkpoint["optimizer_states"]]
        is_regrouped = any(key.startswith("model.param_groups") for key in self._changed)
        is_same_class = trained_with.get("optimizers", names) == names
        return is_same_class and not is_regrouped and before == [_sizes(one.param_groups) for one in optimizers]

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._has_trained = True
        if not self._checkpoint:
            return
        for optimizer, options in zip(trainer.optimizers, self._options, strict=True):
            for group, own in zip(optimizer.param_groups, options, strict=True):
                group.update(own)
        for config in trainer.lr_scheduler_configs:
            _move(config, trainer)
        next(callback for callback in trainer.callbacks if isinstance(callback, SteppedRate)).forget()
        self._checkpoint = {}

    def on_fit_end(self, trainer: Any, pl_module: LightningModule) -> None:
        if not self._has_trained:
            log.warning("Nothing was trained: the checkpoint is at the end of training; use a larger trainer.max_epochs")


def _changes_batches(key: str) -> bool:
    group, _, name = key.partition(".")
    return key == "seed" or (group == "datamodule" and name not in _LOADING)


def _begin_epoch_again(checkpoint: dict[str, Any], keys: Sequence[str]) -> None:
    """Restart the epoch: the position in the data is a number of batches, and the batches have changed."""
    loop = checkpoint["loops"]["fit_loop"]
    progress = loop["epoch_loop.batch_progress"]
    if progress["current"]["completed"] and not progress["is_last_batch"]:
        rewind_progress(loop, within=False)
        checkpoint |= {"epoch_logs": {}, "samples_per_batch": None, "order": None}
        log.warning(f"Epoch {checkpoint['epoch'] + 1} begins again, since its batches change with {', '.join(keys)}")


def _sizes(groups: Sequence[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _move(config: LRSchedulerConfig, trainer: Any) -> None:
    if isinstance(config.scheduler, ReduceLROnPlateau):
        log.warning("Not carried over from the checkpoint: ReduceLROnPlateau, which begins anew at the configured rate")
        return
    with warnings.catch_warnings():  # torch's, that the optimizer has not stepped yet
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        for _ in range(_moves(trainer, config)):
            config.scheduler.step()


def _moves(trainer: Any, config: LRSchedulerConfig) -> int:
    """Return how often the schedule would have advanced. With max_steps this follows from the steps, else from the epochs, since
    another batch size changes the steps of an epoch."""
    if config.interval == "epoch":
        return trainer.current_epoch // config.frequency
    steps, batches = trainer.global_step, trainer.num_training_batches
    if trainer.max_steps < 0 and math.isfinite(batches):
        accumulated = trainer.accumulate_grad_batches
        steps = trainer.current_epoch * -(-batches // accumulated) + batches_trained(trainer) // accumulated
    return steps // config.frequency
