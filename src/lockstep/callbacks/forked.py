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
from lockstep.runs.resume import read_start
from lockstep.trainer.steps import batches_trained

log = logging.getLogger(__name__)
_LOADING = ("num_workers", "pin_memory")  # datamodule options that do not change batches


def forked_from(cfg: DictConfig, checkpoint: Path) -> "Forked":
    """Return the callback of a run that starts from another run's checkpoint. Raise ConfigError if nothing is left to train."""
    log.info(f"Forked from {checkpoint}, at step {read_start(cfg, 'fork', checkpoint).get('global_step', 0)}")
    return Forked(cfg.forked_from.changed)


class Forked(Callback):
    """Set the configured options of optimizers before the first step, and advance each schedule to where it would be if it had
    been used from step 0. Do nothing if no key has changed; the run then equals the source run bit for bit.

    Args:
        changed: Keys whose values differ from the source run's.
    """

    def __init__(self, changed: Sequence[str]) -> None:
        self._changed = changed
        self._checkpoint: dict[str, Any] = {}
        self._rate: float | None = None  # the checkpoint's

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and self._changed:
            self._checkpoint = checkpoint
            if keys := [key for key in self._changed if _changes_batches(key)]:
                _begin_epoch_again(checkpoint, keys)

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Write the configured options into the optimizers' states, which Lightning restores next."""
        if not self._checkpoint:
            return
        self._checkpoint["lr_schedulers"] = []
        states, optimizers = self._checkpoint["optimizer_states"], trainer.optimizers
        if len(states) != len(optimizers) or not all(map(_fits, states, optimizers)):
            log.warning("Not carried over from the checkpoint: the optimizer's state, which is of another one or of other groups")
            self._checkpoint["optimizer_states"] = []
            return
        self._rate = states[0]["param_groups"][0]["lr"] if states else None
        for state, optimizer in zip(states, optimizers, strict=True):
            for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
                saved |= {name: value for name, value in group.items() if name != "params"}

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        if self._checkpoint:
            for config in trainer.lr_scheduler_configs:
                _move(config, trainer)
            if self._rate is not None and (rate := trainer.optimizers[0].param_groups[0]["lr"]) != self._rate:
                log.info(f"The learning rate continues at {rate:g}; the checkpoint has {self._rate:g}")
        self._checkpoint = {}


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


def _fits(state: dict[str, Any], optimizer: Optimizer) -> bool:
    """True if a state is of an optimizer with these options, and with as many parameters in each group."""
    saved = [(len(group["params"]), group.keys() >= optimizer.defaults.keys()) for group in state["param_groups"]]
    return saved == [(len(group["params"]), True) for group in optimizer.param_groups]


def _move(config: LRSchedulerConfig, trainer: Any) -> None:
    """Advance a schedule as often as it would have advanced. With max_steps this follows from the steps, else from the epochs,
    since another batch size changes the steps of an epoch."""
    if isinstance(config.scheduler, ReduceLROnPlateau):
        log.warning("Not carried over from the checkpoint: ReduceLROnPlateau, which begins anew at the configured rate")
        return
    units, batches = trainer.global_step, trainer.num_training_batches
    if config.interval == "epoch":
        units = trainer.current_epoch
    elif trainer.max_steps < 0 and math.isfinite(batches):
        accumulated = trainer.accumulate_grad_batches
        units = trainer.current_epoch * -(-batches // accumulated) + batches_trained(trainer) // accumulated
    with warnings.catch_warnings():  # torch's, that the optimizer has not stepped yet
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        for _ in range(units // config.frequency):
            config.scheduler.step()
