"""Hydra's seam for sweep=plan: discovered by Hydra and imported at every start, so that it imports nothing heavy."""

from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class PlanSweeper(Sweeper):
    """The jobs that a plan is made of, one after the other, by whichever launcher is chosen; see lockstep.extras.plan.sweep."""

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = dict(params or {})
        self.config: Any = None
        self.loader: Any = None
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.loader = config, hydra_context.config_loader
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from lockstep.extras.plan.sweep import PlanSweep

        assert self.launcher is not None
        given = [f"{key}={value}" for key, value in self.params.items()]
        PlanSweep(self.config, self.loader, self.launcher, [*given, *arguments]).run()
