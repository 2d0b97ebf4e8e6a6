"""The guard that adds the PlainLightning callback to each run; it imports checks.py only if the run needs it."""

from typing import Any

from lightning import Callback, LightningModule
from omegaconf import DictConfig

from lockstep.datamodules.base import DataModule
from lockstep.models.supervised import Supervised
from lockstep.plain_lightning.callback import PlainLightning


class PlainLightningGuard(Callback):
    """Add a PlainLightning callback, or the strategy's own kind of it, to the trainer, and the checks of a user's code.

    A shipped model's config declares the metrics that it logs; for another module a sanity check of one batch shows them.
    """

    def __init__(self, seed: int, cfg: DictConfig) -> None:
        self.seed, self.cfg = seed, cfg

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        is_shipped = isinstance(pl_module, Supervised)
        if stage == "fit" and not is_shipped and self.cfg.trainer.num_sanity_val_steps is None:
            trainer.num_sanity_val_steps = 1
        if any(isinstance(callback, PlainLightning) for callback in trainer.callbacks):
            return
        plain = getattr(trainer.strategy, "plain_lightning", PlainLightning)(self.seed)
        trainer.callbacks.append(plain)
        if is_shipped and isinstance(trainer.datamodule, DataModule):
            return
        from lockstep.plain_lightning.checks import MonitoredMetrics, SameSamples, UnsavedState

        trainer.callbacks += [SameSamples(self.cfg), UnsavedState()]
        if not is_shipped:
            trainer.callbacks.append(MonitoredMetrics(self.cfg, plain.warn))
