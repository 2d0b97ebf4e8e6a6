"""A run that ends before its first validation."""

from typing import Any

from lightning import Callback, LightningModule, Trainer


class FirstValidation(Callback):
    """Has a run validated where `trainer.max_steps` ends it before its first validation, which Lightning then leaves out."""

    def __init__(self) -> None:
        self._has_validated = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._has_validated |= not trainer.sanity_checking

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if 0 < trainer.max_steps <= trainer.global_step and not self._has_validated:
            trainer.should_stop = True  # Lightning validates what is to stop

    def state_dict(self) -> dict[str, Any]:
        return {"has_validated": self._has_validated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._has_validated = state_dict["has_validated"]
