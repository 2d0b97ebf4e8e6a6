"""Hydra's seam for a sweep on a cluster, hydra/launcher=slurm: it is discovered by Hydra under this name."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from hydra_plugins.lockstep_launcher import SweepLauncher


class SlurmLauncher(SweepLauncher):
    """Each job in SLURM's queue."""

    def executor(self, config: DictConfig) -> tuple[Any, Any]:
        from lockstep.extras.slurm.launcher import SlurmExecutor
        from lockstep.extras.slurm.settings import SlurmSettings

        settings = SlurmSettings.from_config(config.hydra.launcher)
        return settings, SlurmExecutor(Path(str(config.hydra.sweep.dir)).absolute(), settings)
