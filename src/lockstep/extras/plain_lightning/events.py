"""Says before the first step that a metric, by which a run is compared, stopped or saved, is none that the module logs."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lockstep.config.metrics import monitored
from lockstep.config.targets import buildable
from lockstep.runs.events import RunEvents


@buildable
class CheckMetrics(RunEvents):
    """A Task says in the config what it logs; another module shows it in a batch of validation."""

    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        from lockstep.models.task import Task  # torch

        if isinstance(model, Task):
            return
        from lockstep.extras.plain_lightning.monitored import MonitoredMetrics

        if cfg.trainer.num_sanity_val_steps is None:
            trainer.num_sanity_val_steps = 1
        trainer.callbacks.append(MonitoredMetrics(dict(monitored(cfg))))
