"""Gives a run's trainer the callback that notes its processes, and says where nobody knows of them."""

import logging
import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.targets import buildable
from lockstep.launchers.environment import this_rank
from lockstep.runs.events import RunEvents

log = logging.getLogger(__name__)


@buildable
class NoteRanks(RunEvents):
    def begin(self, cfg: DictConfig, directory: Path) -> None:
        """Says so where variables make this process one of several ranks, and nobody who is known has set them."""
        size = os.environ.get("WORLD_SIZE", "")
        if this_rank() is None and size.isdecimal() and int(size) > 1:
            why = "is set by neither torchrun nor srun, and not read; each process that has it trains by itself"
            log.warning(f"WORLD_SIZE={size}: {why}")

    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        from lockstep.extras.ranks.ranks import Ranks  # torch

        composed: Any = OmegaConf.to_container(cfg, resolve=False)
        trainer.callbacks.append(Ranks(composed))
