"""Early stopping that works in resumed runs."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch import callbacks

from lockstep.errors import check_at_least


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's early stopping, which also stops a resumed run that it had stopped before, unless `patience` is larger now. The
    stop is withdrawn if the metric improves while `trainer.min_epochs` prevents stopping."""

    def __init__(self, monitor: str, patience: int = 3, **more: Any) -> None:
        check_at_least(0, patience=patience)
        super().__init__(monitor, patience=patience, **more)
        self._has_asked = False  # True if this callback, and nothing before it, requested the stop

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.wait_count and self.wait_count >= self.patience:
            trainer.should_stop = self._has_asked = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        was_stopping = trainer.should_stop
        super().on_validation_end(trainer, pl_module)
        self._reconsider(trainer, was_stopping)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        was_stopping = trainer.should_stop
        super().on_train_epoch_end(trainer, pl_module)
        self._reconsider(trainer, was_stopping)

    def _reconsider(self, trainer: Trainer, was_stopping: bool) -> None:
        if self._has_asked and not self.wait_count:
            trainer.should_stop = self._has_asked = False
            self.stopping_reason_message = None
        self._has_asked |= trainer.should_stop and not was_stopping
