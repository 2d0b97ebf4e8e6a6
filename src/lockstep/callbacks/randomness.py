"""Noise inside the model, dropout say."""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lockstep.counter_rng import seed_of


class CounterBasedRandomness(Callback):
    """Seeds torch's generators from (seed, epoch, batch, rank) at every training batch.

    Ranks draw differently, and what a batch draws does not depend on what was drawn before it.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        seed = seed_of(self.seed, trainer.current_epoch, batch_idx, trainer.global_rank)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every kind of device, at every batch
        if pl_module.device.type == "cuda":
            torch.cuda.manual_seed(seed)
