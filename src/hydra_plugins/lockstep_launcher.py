"""Hydra's seam for multirun: found by Hydra under this name, imported at every start, so it imports nothing heavy."""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from lockstep.sweeps.settings import Settings

ConfigStore.instance().store(group="hydra/launcher", name="lockstep", node=Settings, provider="lockstep")


class LockstepLauncher(Launcher):
    """Each job a fresh process tree in a directory of its own; see lockstep.sweeps.sweep."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.sweep: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from lockstep.sweeps.sweep import Sweep

        self.sweep = Sweep.current(config, hydra_context.config_loader, self.settings)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        return self.sweep.launch(job_overrides)
