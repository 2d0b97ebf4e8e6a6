"""Ends the process after its first steps, so that what it took is what came before: +callbacks.end={_target_: first_step.End}"""

import os
from typing import Any

from lightning import Callback, LightningModule, Trainer


class End(Callback):
    def __init__(self, steps: int = 1) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx + 1 == self.steps:
            os._exit(0)
