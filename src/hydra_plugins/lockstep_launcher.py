"""Hydra's seams for multirun: discovered by Hydra and imported at every start, so that they import nothing heavy."""

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LockstepLauncher(Launcher):
    """Each job in a directory of its own, run by hydra.launcher.executor; see lockstep.sweeps.sweep."""

    def __init__(self, **settings: Any) -> None:
        """The executor reads the settings."""
        self.sweep: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from lockstep.sweeps.sweep import Sweep

        self.sweep = Sweep.current = Sweep(config, hydra_context.config_loader)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        return self.sweep.launch(job_overrides)


class LockstepSweeper(BasicSweeper):
    """Hydra's own sweeper, without composing every job a first time only to see that it can be: the launcher composes and checks
    all jobs of a batch before it starts the first."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Check the jobs of all batches before the first one, where max_batch_size makes several."""
        if self.batch_index == 1 and len(self.overrides or ()) > 1:
            self.launcher.sweep.check([job for batch in self.overrides or () for job in batch])  # pyright: ignore
