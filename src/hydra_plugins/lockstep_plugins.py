"""Hydra's seams for multirun, for a search, and for where configs are: discovered by Hydra and imported at every start, so that
they import nothing heavy."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from lockstep.errors import config_error
from lockstep.places import CONF, project


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


class LockstepSearchPath(SearchPathPlugin):
    """Lockstep's configs stand behind the project's, of which those of the same name win, whichever of both a program names."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folders = {_folder(element.path) for element in search_path.get_path()}
        if CONF not in folders:
            search_path.append("lockstep", f"file://{CONF}")
        elif (own := project() / "conf") not in folders:
            search_path.prepend("project", f"file://{own}", SearchPathQuery(provider="main"))


def _folder(path: str) -> Path:
    return Path(path.removeprefix("file://")).resolve()
