"""Gives a run's trainer the loop with a short way for plain steps."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lockstep.config.targets import buildable
from lockstep.runs.events import RunEvents


@buildable
class FastLoop(RunEvents):
    """`events.fast_loop=null` leaves Lightning's own loop."""

    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        from lockstep.extras.fast_loop.epoch_loop import install_fast_loop  # torch

        install_fast_loop(trainer)
