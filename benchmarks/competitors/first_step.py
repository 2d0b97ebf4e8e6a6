"""Ends the process after its first step, so that what it took is what came before: +callbacks.end={_target_: first_step.End}"""

import os
from typing import Any

from lightning import Callback, LightningModule, Trainer


class End(Callback):
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        os._exit(0)
