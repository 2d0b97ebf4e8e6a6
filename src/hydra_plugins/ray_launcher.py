"""Hydra's seam for a sweep on Ray, hydra/launcher=ray: it is discovered by Hydra under this name."""

import importlib.util
from typing import Any

from omegaconf import DictConfig

from hydra_plugins.lockstep_launcher import SweepLauncher
from lockstep.errors import config_error


class RayLauncher(SweepLauncher):
    """Each job where Ray has room for it."""

    def executor(self, config: DictConfig) -> tuple[Any, Any]:
        if importlib.util.find_spec("ray") is None:
            raise config_error("hydra/launcher", "ray", "the library `ray` is not installed: pip install 'lockstep[ray]'")
        from lockstep.extras.ray_cluster.launcher import RayExecutor
        from lockstep.extras.ray_cluster.settings import RaySettings

        settings = RaySettings.from_config(config.hydra.launcher)
        return settings, RayExecutor(settings)
