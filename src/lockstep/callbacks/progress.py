"""How far a run is, for a person."""

import logging
import sys
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar

log = logging.getLogger(__name__)


class Progress(TQDMProgressBar):
    """A bar on a terminal, redrawn every `refresh_rate` batches, and a line per epoch everywhere.

    It reads the metrics that are logged anyway, so that no batch waits for the device on its account.
    """

    def __init__(self, refresh_rate: int = 50) -> None:
        super().__init__(refresh_rate=refresh_rate if sys.stdout.isatty() else 0)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        return {name: f"{float(value):.4g}" for name, value in trainer.callback_metrics.items()}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if trainer.is_global_zero:
            if self.is_enabled:
                self.train_progress_bar.clear()
            metrics = "  ".join(f"{name} {value}" for name, value in self.get_metrics(trainer, pl_module).items())
            log.info(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  step {trainer.global_step}  {metrics}")
