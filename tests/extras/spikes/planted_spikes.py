"""Losses that are far above those before them."""

from typing import Any

from lightning import Callback, LightningModule, Trainer


class Spike(Callback):
    """Makes the loss of some batches, counted from the first, on one rank a hundred times as large."""

    def __init__(self, *batches: int, rank: int = 0) -> None:
        self.batches, self.rank = batches, rank

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step: Any = pl_module.training_step

        def enlarged(batch: Any, batch_idx: int) -> Any:
            is_enlarged = batch_idx in self.batches and trainer.global_rank == self.rank
            return step(batch, batch_idx) * (100 if is_enlarged else 1)

        pl_module.training_step = enlarged


class BrokenOff(Callback):
    """Ends training before a batch."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.batch:
            raise InterruptedError
