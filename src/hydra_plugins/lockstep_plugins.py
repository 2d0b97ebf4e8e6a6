"""Hydra's seams for multirun, for a search, and for where configs are: discovered by Hydra and imported at every start, so that
they import nothing heavy."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override

from lockstep.config.overrides import values_by_key
from lockstep.config.plan import rate_key
from lockstep.errors import config_error
from lockstep.places import CONF, project
from lockstep.runs.directory import absolute, lock_sweep
from lockstep.runs.validation import refusing

_RATE = "model.optimizer.lr"  # a shipped model's key, which the configs of conf/sweep name


class LockstepLauncher(Launcher):
    """Each job in a directory of its own, run by hydra.launcher.executor; see lockstep.sweeps.sweep."""

    def __init__(self, **settings: Any) -> None:
        """The executor reads the settings."""
        self.sweep: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from lockstep.sweeps.sweep import Sweep

        self.sweep = EndSweep.sweep = Sweep(config, hydra_context.config_loader)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        return self.sweep.launch(job_overrides)


class LockstepSweeper(BasicSweeper):
    """Hydra's own sweeper, without composing every job a first time only to see that it can be: the launcher composes and checks
    all jobs of a batch before it starts the first."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Check the jobs of all batches before the first one, where max_batch_size makes several."""
        if self.batch_index == 1 and len(self.overrides or ()) > 1:
            self.launcher.sweep.check([job for batch in self.overrides or () for job in batch])  # pyright: ignore


class EndSweep(Callback):
    """The lock of a sweep's directory before the first batch of jobs, and the table and the exit code after the last."""

    sweep: ClassVar[Any] = None

    @refusing()
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        HydraConfig.instance().set_config(config)
        given: Any = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
        if (value := values_by_key(given).get("hydra.run.dir")) is not None:
            raise config_error("hydra.run.dir", value, f"is for one run; use hydra.sweep.dir={value}")
        for group in ("launcher", "sweeper"):
            if not OmegaConf.is_dict(node := config.hydra[group]):  # hydra.launcher=slurm takes the place of the whole group
                raise config_error(f"hydra.{group}", node, f"a group of values; use hydra/{group}={node}")
        rename_rate(config)
        lock_sweep(absolute(config.hydra.sweep.dir))

    @refusing()
    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if self.sweep is not None:  # else another launcher has run the jobs
            self.sweep.end()


def rename_rate(config: DictConfig) -> None:
    """Rename the learning rate in `hydra.sweeper.params` for a LightningModule that has it as an own argument. Hydra then creates
    the sweeper. Raise ConfigError for a module that has none."""
    params: Any = OmegaConf.to_container(OmegaConf.select(config, "hydra.sweeper.params") or OmegaConf.create())
    model = config.get("model") or {}
    key = rate_key(model)
    if _RATE in params and key is None and "optimizer" not in model:
        needs = "its YAML has no lr or learning_rate for this sweep to vary; add one, an argument of the class"
        raise config_error("model._target_", model.get("_target_"), f"{needs}, or use -m with keys that it has")
    if _RATE in params and key not in (None, "optimizer.lr"):
        with flag_override(config.hydra.sweeper, ["readonly", "struct"], False):
            config.hydra.sweeper.params = {f"model.{key}" if name == _RATE else name: params[name] for name in params}


class OptunaSweeper(Sweeper):
    """Trials that Optuna asks for, as jobs of whichever launcher is chosen; see lockstep.search.search."""

    def __init__(self, **settings: Any) -> None:
        self.settings = OmegaConf.to_container(OmegaConf.create(settings))
        self.given: dict[str, Any] = {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise config_error("hydra/sweeper", "optuna", "the library `optuna` is not installed: pip install 'lockstep[search]'")
        context: dict[str, Any] = {"hydra_context": hydra_context, "task_function": task_function, "config": config}
        launcher: Any = Plugins.instance().instantiate_launcher(**context)
        self.given = {"config": config, "loader": hydra_context.config_loader, "sweep": launcher.sweep}

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
