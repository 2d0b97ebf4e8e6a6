"""Guard that finds runs of Lightning code as it is; imports what these need for them alone."""

from typing import Any

from lightning import Callback, LightningModule
from omegaconf import DictConfig

from lockstep.datamodules.base import DataModule
from lockstep.models.task import Task


class PlainLightningGuard(Callback):
    """Give the trainer of a module that is no Task, or of data that is no DataModule, a PlainLightning callback.

    A Task's config says what it logs; another module shows it in a batch of validation.
    """

    def __init__(self, seed: int, cfg: DictConfig) -> None:
        self.seed, self.cfg = seed, cfg

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not isinstance(pl_module, Task):
            from lockstep.extras.plain_lightning.monitored import MonitoredMetrics

            if self.cfg.trainer.num_sanity_val_steps is None:
                trainer.num_sanity_val_steps = 1
            if not any(isinstance(callback, MonitoredMetrics) for callback in trainer.callbacks):
                trainer.callbacks.append(MonitoredMetrics(self.cfg))
        self.attach(trainer, pl_module, getattr(trainer, "datamodule", None))

    def attach(self, trainer: Any, model: LightningModule, datamodule: Any) -> None:
        """Add the callback once, before the trainer sets up if it is needed then. A strategy may have one of its own."""
        if isinstance(model, Task) and isinstance(datamodule, DataModule):
            return
        from lockstep.extras.plain_lightning.callback import PlainLightning
        from lockstep.extras.plain_lightning.kept_state import KeptState
        from lockstep.extras.plain_lightning.same_samples import SameSamples

        if not any(isinstance(callback, PlainLightning) for callback in trainer.callbacks):
            make = getattr(trainer.strategy, "plain_lightning", PlainLightning)
            trainer.callbacks += [make(self.seed), SameSamples(self.cfg), KeptState()]
