"""Stopping when there is nothing more to gain."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch import callbacks

from lockstep.errors import check_at_least


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's early stopping, which a resumed run knows to have stopped it, unless `patience` is larger now."""

    def __init__(self, monitor: str, patience: int = 3, **more: Any) -> None:
        check_at_least(0, patience=patience)
        super().__init__(monitor, patience=patience, **more)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.wait_count and self.wait_count >= self.patience:
            trainer.should_stop = True
