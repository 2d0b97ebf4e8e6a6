"""Where the processes of a run are."""

import os
import platform
from pathlib import Path

import torch.distributed
from lightning import Callback, LightningModule, Trainer

from lockstep.runs.record import write_ranks


class Ranks(Callback):
    """Has status.json say on which host each rank is and which process it is, whoever has started them: to look into one that
    hangs, or to end what a lost parent has left."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        own = platform.node(), os.getpid()
        ranks = [own] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(ranks, own)
        if stage == "fit" and trainer.is_global_zero:
            write_ranks(Path(trainer.default_root_dir), ranks)
