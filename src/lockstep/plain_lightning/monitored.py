"""Check that the model logs the metrics that the config monitors."""

from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig
from torch.optim import Optimizer

from lockstep.errors import config_error
from lockstep.metrics import monitored
from lockstep.plain_lightning.callback import PlainLightning
from lockstep.plain_lightning.lightning_internals import (
    names_logged_in_training,
    names_logged_in_validation,
    own_values_of_a_step,
)


class MonitoredMetrics(Callback):
    """Raise ConfigError, before the first optimizer step, if the model has not logged a monitored metric, neither in Lightning's
    sanity check (one batch of validation) nor in its first training step.

    A name that may be logged later is accepted: a test metric, or one not of validation if an epoch-end hook is overridden or
    the model uses manual optimization. A run that starts from a checkpoint has no sanity check.

    On several processes, warn if a callback or schedule monitors the value of a step, which differs between processes.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg
        self._validated: set[str] = set()
        self._is_first_step = False

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._is_first_step = True

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = {*trainer.callback_metrics} | names_logged_in_validation(trainer)

    def on_before_optimizer_step(self, trainer: Any, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if not self._is_first_step:
            return
        self._is_first_step = False
        if trainer.world_size > 1:
            _name_own_values(trainer)
        validates_later = trainer.num_sanity_val_steps == 0 and trainer.enable_validation
        if trainer.ckpt_path is not None or validates_later:
            return
        known = self._validated | names_logged_in_training(trainer)
        logs_later = _may_log_later(trainer, pl_module)
        for key, metric in monitored(self.cfg):
            if metric not in known and not metric.startswith("test") and not (logs_later and not metric.startswith("val")):
                mode = ", with its optimized_mode, or null" if key == "optimized_metric" else ""
                logged = f"{', '.join(sorted(known)) or 'nothing'} up to its first optimizer step; use what it logs{mode}"
                if metric.startswith("val") and trainer.enable_validation:
                    logged += "; trainer.num_sanity_val_steps=0 if it logs other names in Lightning's sanity check"
                raise config_error(key, metric, f"the model logs {logged}")


def _name_own_values(trainer: Any) -> None:
    own = own_values_of_a_step(trainer)
    monitors = [(type(one).__name__, getattr(one, "monitor", None)) for one in trainer.callbacks]
    schedules = [one for one in trainer.lr_scheduler_configs if one.reduce_on_plateau and one.interval == "step"]
    monitors += [(type(one.scheduler).__name__, one.monitor) for one in schedules]
    for plain in (one for one in trainer.callbacks if isinstance(one, PlainLightning)):
        for name, metric in monitors:
            if metric in own:
                plain.warn(f"{name} monitors each process's own {metric}; self.log(..., sync_dist=True) makes it that of all")


def _may_log_later(trainer: Any, model: LightningModule) -> bool:
    """Return whether hooks at the end of a batch or an epoch may log names that the first step has not."""
    hooks = ("on_train_batch_end", "on_train_epoch_end")
    has_own = any(not type(one).__module__.startswith(("lockstep.", "lightning.")) for one in trainer.callbacks)
    return has_own or not model.automatic_optimization or any(is_overridden(hook, model, LightningModule) for hook in hooks)
