"""Guard that gives each run its PlainLightning callback; imports what a user's own code needs for that alone."""

from typing import Any

from lightning import Callback, LightningModule
from omegaconf import DictConfig

from lockstep.datamodules.base import DataModule
from lockstep.models.supervised import Supervised
from lockstep.plain_lightning.callback import PlainLightning


class PlainLightningGuard(Callback):
    """Give the trainer a PlainLightning callback, or the strategy's own of that kind.

    A shipped model's config says what it logs; another module shows it in a batch of validation.
    """

    def __init__(self, seed: int, cfg: DictConfig) -> None:
        self.seed, self.cfg = seed, cfg

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not isinstance(pl_module, Supervised):
            if self.cfg.trainer.num_sanity_val_steps is None:
                trainer.num_sanity_val_steps = 1
            from lockstep.plain_lightning.monitored import MonitoredMetrics

            if not any(isinstance(callback, MonitoredMetrics) for callback in trainer.callbacks):
                trainer.callbacks.append(MonitoredMetrics(self.cfg))
        if not any(isinstance(callback, PlainLightning) for callback in trainer.callbacks):
            make = getattr(trainer.strategy, "plain_lightning", PlainLightning)
            trainer.callbacks.append(make(self.seed))
            if not (isinstance(pl_module, Supervised) and isinstance(trainer.datamodule, DataModule)):
                from lockstep.plain_lightning.same_samples import SameSamples
                from lockstep.plain_lightning.unsaved_state import UnsavedState

                trainer.callbacks += [SameSamples(self.cfg), UnsavedState()]
