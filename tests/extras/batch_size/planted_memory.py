"""Too little memory, from a step on, for more samples at once than so many."""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer


class TooLittleMemory(Callback):
    def __init__(self, enough_for: int, rank: int, step: int) -> None:
        self.enough_for, self.rank, self.step = enough_for, rank, step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        is_late = trainer.global_step >= self.step and trainer.global_rank == self.rank
        if is_late and len(batch.targets) > self.enough_for:
            raise torch.OutOfMemoryError("CUDA out of memory. Planted.")
