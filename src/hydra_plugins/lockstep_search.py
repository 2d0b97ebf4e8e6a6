"""Hydra's seam for a search: discovered by Hydra and imported at every start, so that it imports nothing heavy."""

import importlib.util
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from lockstep.errors import config_error


class OptunaSweeper(Sweeper):
    """Trials that Optuna asks for, as jobs of whichever launcher is chosen; see lockstep.search.search."""

    def __init__(self, **settings: Any) -> None:
        self.settings = OmegaConf.to_container(OmegaConf.create(settings))
        self.given: dict[str, Any] = {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise config_error("hydra/sweeper", "optuna", "the library `optuna` is not installed: pip install 'lockstep[search]'")
        context: dict[str, Any] = {"hydra_context": hydra_context, "task_function": task_function, "config": config}
        launcher = Plugins.instance().instantiate_launcher(**context)
        self.given = {"config": config, "loader": hydra_context.config_loader, "launcher": launcher}

    def sweep(self, arguments: list[str]) -> None:
        from lockstep.config.construct import construct

        node = {"_target_": "lockstep.search.search.Search", **self.settings}  # pyright: ignore
        construct("hydra.sweeper", node, self.given).run(arguments)
