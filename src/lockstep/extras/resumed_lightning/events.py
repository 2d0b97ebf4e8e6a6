"""Gives a run the callbacks that see to what Lightning's own forget."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lockstep.config.targets import buildable
from lockstep.runs.events import RunEvents


@buildable
class ResumeLightning(RunEvents):
    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        from lockstep.extras.resumed_lightning.callbacks import LightningCallbacks  # torch
        from lockstep.extras.resumed_lightning.schedules import SchedulesAsBefore
        from lockstep.extras.resumed_lightning.trained_parameters import TrainedParameters

        # schedules first: Lightning's averaging of weights takes them away where it goes on; others unfreeze as an epoch begins
        trainer.callbacks = [SchedulesAsBefore(), TrainedParameters(), *trainer.callbacks, LightningCallbacks()]
