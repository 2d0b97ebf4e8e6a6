"""The guard that adds the PlainLightning callback to each run; it imports the other modules only if the run needs them."""

from typing import Any

from lightning import Callback, LightningModule
from omegaconf import DictConfig

from lockstep.datamodules.base import DataModule
from lockstep.models.supervised import Supervised
from lockstep.plain_lightning.callback import PlainLightning


class PlainLightningGuard(Callback):
    """Add a PlainLightning callback, or the strategy's own kind of it, to the trainer.

    A shipped model's config declares the metrics that it logs; for another module a sanity check of one batch shows them.
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
