"""Sees which runs are of Lightning code as it is; imports what these need for them alone."""

from typing import Any

from lightning import Callback, LightningModule, Trainer

from lockstep.datamodules.base import DataModule
from lockstep.models.task import Task


class PlainLightningGuard(Callback):
    """Gives the trainer of a module that is no Task, or of data that is no DataModule, a PlainLightning callback."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.attach(trainer, pl_module, getattr(trainer, "datamodule", None))

    def attach(self, trainer: Any, model: LightningModule, datamodule: Any) -> None:
        """Does so once, for whoever needs to see the callback before the trainer sets up. A strategy may have one of its own."""
        if isinstance(model, Task) and isinstance(datamodule, DataModule):
            return
        from lockstep.extras.plain_lightning.callback import PlainLightning

        if not any(isinstance(callback, PlainLightning) for callback in trainer.callbacks):
            make = getattr(trainer.strategy, "plain_lightning", PlainLightning)
            trainer.callbacks.append(make(self.seed))
