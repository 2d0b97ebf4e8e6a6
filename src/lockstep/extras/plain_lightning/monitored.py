"""Check that the model logs the metrics that a run is compared, stopped or saved by."""

import logging
import os
from collections.abc import Iterator
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig
from torch.optim import Optimizer

from lockstep.callbacks.checkpoints import BestCheckpoint
from lockstep.config.metrics import monitored
from lockstep.errors import config_error
from lockstep.extras.plain_lightning.callback import PlainLightning
from lockstep.extras.plain_lightning.lightning_internals import (
    names_logged_in_training,
    names_logged_in_validation,
    own_values_of_a_step,
)
from lockstep.launchers.environment import SWEPT_KEYS

log = logging.getLogger(__name__)


class MonitoredMetrics(Callback):
    """Raise ConfigError, before the first step of the optimizer, for a metric that the config, or a callback or schedule of the
    model's own, monitors and the model has logged neither in Lightning's sanity check, a batch of validation, nor in its first
    training step.

    A name that may be logged later is accepted: one of the test, and one that is not of validation where the end of an epoch has
    hooks of its own, or the model optimizes by itself. A run that continues from a checkpoint has no sanity check.

    A single run whose model logs nothing optimizes nothing: its best.ckpt is the latest.

    On several processes a callback that monitors the value of a step sees process 0's own, which is said.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg, self.monitored = cfg, dict(monitored(cfg))
        self._logs_nothing = False
        self._validated: set[str] = set()
        self._is_asked = False
        self._names_own_values = False

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        validates_later = trainer.num_sanity_val_steps == 0 and trainer.enable_validation
        self._is_asked = trainer.ckpt_path is None and not validates_later
        self._names_own_values = trainer.world_size > 1
        if self._logs_nothing:
            self._optimize_nothing(trainer)

    def state_dict(self) -> dict[str, bool]:
        return {"logs_nothing": self._logs_nothing}

    def load_state_dict(self, state_dict: dict[str, bool]) -> None:
        self._logs_nothing = state_dict["logs_nothing"]

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = {*trainer.callback_metrics} | names_logged_in_validation(trainer)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self._names_own_values:
            self._names_own_values = False
            _name_own_values(trainer)
        if not self._is_asked:
            return
        self._is_asked = False
        known = self._validated | names_logged_in_training(trainer)
        logs_later = not pl_module.automatic_optimization or _has_hooks_at_the_end(trainer, pl_module)

        def is_there(metric: str) -> bool:
            is_later = metric.startswith("test") or (logs_later and not metric.startswith("val"))
            return metric in known or is_later

        metric = self.cfg.optimized_metric
        if not known and metric is not None and not is_there(metric) and SWEPT_KEYS not in os.environ:
            self._optimize_nothing(trainer)
            log.warning(f"{type(pl_module).__name__} logs nothing: there is no metric to optimize, and best.ckpt is the latest.")
        for key, metric in (*self.monitored.items(), *self._monitored_by_objects(trainer)):
            if not is_there(metric):
                mode = ", with its optimized_mode, or null" if key == "optimized_metric" else ""
                logged = f"{', '.join(sorted(known)) or 'nothing'} up to its first optimizer step; use what it logs{mode}"
                if metric.startswith("val") and trainer.enable_validation:
                    logged += "; trainer.num_sanity_val_steps=0 if it logs other names in Lightning's sanity check"
                raise config_error(key, metric, f"the model logs {logged}")

    def _optimize_nothing(self, trainer: Any) -> None:
        for saver in trainer.callbacks:
            if isinstance(saver, BestCheckpoint) and saver.monitor == self.cfg.optimized_metric:
                saver.monitor = None
        self.cfg.optimized_metric, self._logs_nothing = None, True
        self.monitored = dict(monitored(self.cfg))

    def _monitored_by_objects(self, trainer: Any) -> Iterator[tuple[str, str]]:
        """Yield those that the config does not name."""
        objects = {type(one).__name__: one for one in trainer.callbacks}
        objects |= {type(one.scheduler).__name__: one for one in trainer.lr_scheduler_configs if one.reduce_on_plateau}
        for name, one in objects.items():
            metric = getattr(one, "monitor", None)
            if isinstance(metric, str) and getattr(one, "strict", True) and metric not in self.monitored.values():
                yield f"{name}.monitor", metric


def _name_own_values(trainer: Any) -> None:
    own = own_values_of_a_step(trainer)
    watched = {one.monitor: type(one).__name__ for one in trainer.callbacks if getattr(one, "monitor", None) in own}
    for plain in (one for one in trainer.callbacks if isinstance(one, PlainLightning)):
        for metric, callback in watched.items():
            plain.warn(f"{callback} monitors {metric} of process 0 alone; self.log(..., sync_dist=True) makes it that of all")


def _has_hooks_at_the_end(trainer: Any, model: LightningModule) -> bool:
    own = [one for one in trainer.callbacks if not type(one).__module__.startswith(("lockstep.", "lightning."))]
    hooks = ("on_train_batch_end", "on_train_epoch_end")
    in_model = any(is_overridden(hook, model, LightningModule) for hook in hooks)
    return in_model or any(is_overridden(hook, callback, Callback) for callback in own for hook in hooks)
