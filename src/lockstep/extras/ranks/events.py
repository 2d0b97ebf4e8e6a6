"""Gives a run's trainer the callback that notes its processes."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.targets import buildable
from lockstep.runs.events import RunEvents


@buildable
class NoteRanks(RunEvents):
    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        from lockstep.extras.ranks.ranks import Ranks  # torch

        composed: Any = OmegaConf.to_container(cfg, resolve=False)
        trainer.callbacks.append(Ranks(composed))
