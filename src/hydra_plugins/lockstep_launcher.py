"""Hydra's seam for multirun: discovered by Hydra and imported at every start, so that it imports nothing heavy."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from lockstep.sweeps.settings import LocalSettings

ConfigStore.instance().store(group="hydra/launcher", name="lockstep", node=LocalSettings, provider="lockstep")


class SweepLauncher(Launcher):
    """Each job in a directory of its own, run by whom `executor` says; see lockstep.sweeps.sweep."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.sweep: Any = None
        self.context: Any = None
        self.task: Any = None

    @abstractmethod
    def executor(self, config: DictConfig) -> tuple[Any, Any]:
        """The settings of the sweep, and its executor."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from lockstep.sweeps.sweep import Sweep

        self.context, self.task = hydra_context, task_function
        self.sweep = Sweep.current(config, hydra_context.config_loader, *self.executor(config))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        with self.sweep.answering():
            return self.sweep.launch(job_overrides)


class LockstepLauncher(SweepLauncher):
    """Each job a process tree of its own on this machine."""

    def executor(self, config: DictConfig) -> tuple[Any, Any]:
        from lockstep.cli import run_job
        from lockstep.launchers.processes import Function
        from lockstep.sweeps.local import LocalExecutor

        settings = LocalSettings(**self.settings)
        return settings, LocalExecutor.from_settings(settings, partial(run_job, self.context, Function.of(self.task)))
