"""A search by Ray Tune: points at random, as jobs of the sweep's launcher, which Ray Tune's scheduler ends early."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import write_json
from lockstep.config.rules import SEED, integer
from lockstep.errors import config_error
from lockstep.extras.ray_cluster.reports import TUNE, make
from lockstep.extras.search.search import SPACES, Search
from lockstep.extras.search.search import Settings as SearchSettings
from lockstep.sweeps.settings import Keys

SCHEDULERS: dict[str, dict[str, Any]] = {
    "ASHAScheduler": {"_target_": "ray.tune.schedulers.ASHAScheduler", "max_t": 1000, "stop_last_trials": False},
    "MedianStoppingRule": {"_target_": "ray.tune.schedulers.MedianStoppingRule", "grace_period": 1},
}


@dataclass
class Settings(Keys):
    """hydra.sweeper.KEY=VALUE; conf/hydra/sweeper/ray_tune.yaml says what each means."""

    GROUP: ClassVar[str] = "hydra.sweeper"

    n_trials: Annotated[int, integer(1)] = 20
    n_jobs: Annotated[int, integer(1)] = 1
    scheduler: Any = "ASHAScheduler"
    seed: Annotated[int, SEED] = 0
    params: Annotated[Any, SPACES] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scheduler = _scheduler(self.scheduler)


def _scheduler(value: Any) -> dict[str, Any] | None:
    """Return the node of a name, or of a node whose arguments come before those above. Raise ConfigError for another class: some
    pause a trial until others have come as far, and go on with its process."""
    if value is None:
        return None
    target = value.get("_target_", "") if isinstance(value, Mapping) else value
    name = str(target).rpartition(".")[2]
    if name not in SCHEDULERS or target not in (name, SCHEDULERS[name]["_target_"]):
        raise config_error("hydra.sweeper.scheduler", target, f"use {', '.join(SCHEDULERS)}, or null")
    return SCHEDULERS[name] | (dict(value) if isinstance(value, Mapping) else {}) | {"_target_": SCHEDULERS[name]["_target_"]}


class TuneSweep(Search):
    """A search whose jobs ask Ray Tune's scheduler, by the callback `stopping`."""

    def __init__(self, config: DictConfig, loader: Any, settings: Settings, launcher: Launcher) -> None:
        sampler = {"_target_": "optuna.samplers.RandomSampler", "seed": settings.seed}
        search = SearchSettings(settings.n_trials, settings.n_jobs, sampler, None, settings.params)
        super().__init__(config, loader, search, launcher)
        self._known = {"metric": config.optimized_metric, "mode": config.optimized_mode, "seed": settings.seed}
        self._scheduler = settings.scheduler

    def check(self) -> list[DictConfig]:
        composed = super().check()
        if self._scheduler is not None:
            make(self._scheduler).set_search_properties(self._known["metric"], self._known["mode"])
            if OmegaConf.select(composed[0], "callbacks.stopping") is None:
                accepted = "needs callbacks.stopping; use sweep=ray_tune, which has it, or null"
                raise config_error("hydra.sweeper.scheduler", self._scheduler["_target_"], accepted)
        return composed

    def open(self) -> None:
        super().open()
        (self.directory / TUNE).unlink(missing_ok=True)
        if self._scheduler is not None:
            write_json(self.directory / TUNE, {"scheduler": self._scheduler, **self._known})
