"""Hydra's seam for a search: discovered by Hydra and imported at every start, so that it imports nothing heavy."""

import importlib.util
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from lockstep.errors import config_error


class OptunaSweeper(Sweeper):
    """Trials that Optuna asks for, as jobs of whichever launcher is chosen; see lockstep.extras.search.search."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.config: Any = None
        self.loader: Any = None
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise config_error("hydra/sweeper", "optuna", "the library `optuna` is not installed: pip install -e '.[search]'")
        self.config, self.loader = config, hydra_context.config_loader
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from lockstep.extras.search.search import Search, Settings

        assert self.launcher is not None
        Search(self.config, self.loader, Settings.from_config(self.settings), self.launcher).run(arguments)
