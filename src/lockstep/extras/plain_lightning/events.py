"""Says before the first step that a module has no data, or does not log a metric by which its run is compared."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lockstep.config.targets import buildable
from lockstep.runs.events import RunEvents


@buildable
class CheckPlainLightning(RunEvents):
    """A Task has its data from a datamodule, and says in the config what it logs; another module may have loaders of its own, and
    shows what it logs in a batch of validation."""

    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        from lockstep.models.task import Task  # torch

        if isinstance(model, Task):
            return
        from lockstep.extras.plain_lightning.monitored import MonitoredMetrics
        from lockstep.extras.plain_lightning.training_data import check_training_data

        check_training_data(model, cfg.datamodule is not None)
        if cfg.trainer.num_sanity_val_steps is None:
            trainer.num_sanity_val_steps = 1
        trainer.callbacks.append(MonitoredMetrics(cfg))
