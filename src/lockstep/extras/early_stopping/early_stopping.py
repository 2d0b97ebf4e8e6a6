"""Stopping when there is nothing more to gain."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from lockstep.errors import check_at_least


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's early stopping, which also knows after a resumption that it has stopped the run. It decides anew with another
    `patience`, and if the metric improves while `trainer.min_epochs` keeps the run from stopping."""

    def __init__(self, monitor: str, patience: int = 3, **more: Any) -> None:
        check_at_least(0, patience=patience)
        super().__init__(monitor, patience=patience, **more)
        self._has_stopped = False
        self._is_alone = False  # it has asked for the stop, and nothing else before it

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._has_stopped:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        was_stopping = trainer.should_stop
        super().on_validation_end(trainer, pl_module)
        self._note(trainer, was_stopping)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        was_stopping = trainer.should_stop
        super().on_train_epoch_end(trainer, pl_module)
        self._note(trainer, was_stopping)

    def _note(self, trainer: Trainer, was_stopping: bool) -> None:
        """Take a stop back when the metric has improved since, unless something else has asked for it, too."""
        self._is_alone |= trainer.should_stop and not was_stopping
        if self.stopping_reason == EarlyStoppingReason.PATIENCE_EXHAUSTED and not self.wait_count:
            trainer.should_stop &= not self._is_alone
            self.stopping_reason_message, self._is_alone = None, False
            self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
        self._has_stopped = trainer.should_stop and self.stopping_reason_message is not None  # this callback has

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"has_stopped": self._has_stopped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        given = self.patience
        super().load_state_dict(state_dict)
        self._has_stopped = state_dict["has_stopped"] and given == self.patience
        self.patience = given
        if not self._has_stopped:
            self.stopping_reason_message = None
