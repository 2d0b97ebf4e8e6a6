"""Stopping when there is nothing more to gain."""

from lightning import LightningModule, Trainer
from lightning.pytorch import callbacks


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's, which also knows after resumption that it has stopped the run before."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.stopped_epoch and self.wait_count >= self.patience:
            trainer.should_stop = True
