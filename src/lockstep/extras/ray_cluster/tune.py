"""A search by Ray Tune: its searcher says which points to try, and the sweep's launcher runs them as jobs like any other.

Nothing is kept of a searcher: it is asked again from the first point on and told what has come of each, for which no finished job
is run again. With one seed and the same results they say the same.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import write_json
from lockstep.config.rules import SEED, Rule, integer
from lockstep.errors import config_error
from lockstep.extras.ray_cluster.parts import SCHEDULERS, SEARCHERS, TIME, Draws, distribution, make, part
from lockstep.extras.ray_cluster.reports import TUNE
from lockstep.extras.search.space import Space
from lockstep.sweeps.composition import JobConfigs
from lockstep.sweeps.job_directory import read_record
from lockstep.sweeps.settings import Keys
from lockstep.sweeps.states import FAILED, FINISHED
from lockstep.sweeps.sweep import RefusedJob, Sweep
from lockstep.sweeps.sweep_jobs import SweepJobs

log = logging.getLogger(__name__)
Point = tuple[str, ...]  # the overrides of a job
_REFUSALS = 5  # of as many points as that one has to be able to start
_SPACES = Rule("accepted is {KEY: SPACE}", lambda v: isinstance(v, Mapping))


@dataclass
class Settings(Keys):
    """hydra.sweeper.KEY=VALUE; conf/hydra/sweeper/ray_tune.yaml says what each means."""

    GROUP: ClassVar[str] = "hydra.sweeper"

    n_trials: Annotated[int, integer(1)] = 20
    n_jobs: Annotated[int, integer(1)] = 1
    searcher: Any = None
    scheduler: Any = "ASHAScheduler"
    seed: Annotated[int, SEED] = 0
    params: Annotated[Any, _SPACES] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.searcher = part("hydra.sweeper.searcher", self.searcher, SEARCHERS)
        self.scheduler = part("hydra.sweeper.scheduler", self.scheduler, SCHEDULERS)


class TuneSweep:
    """n_trials in all. A job that has failed is not tried again."""

    def __init__(self, config: DictConfig, loader: Any, settings: Settings, launcher: Launcher) -> None:
        self.config, self.loader, self.settings, self.launcher = config, loader, settings, launcher
        self.directory = Path(str(config.hydra.sweep.dir)).absolute()
        self.metric, self.mode = config.optimized_metric, config.optimized_mode
        self._failed: set[Point] = set()  # by an earlier call
        self._patience: float = _REFUSALS

    def run(self, arguments: Sequence[str]) -> None:
        given = [f"{key}={space}" for key, space in self.settings.params.items()]
        self.space = Space.from_overrides(OverridesParser.create(self.loader).parse_overrides([*given, *arguments]))
        self.draws = Draws({key: distribution(one) for key, one in self.space.distributions.items()}, self.settings.seed)
        self._check()
        searcher = self._searcher()
        if self.config.hydra.launcher.get("dry_run"):
            self.launcher.launch([self._point(searcher.suggest(str(number))) for number in range(self.settings.n_jobs)], 0)
            return
        OmegaConf.save(self.config, self.directory / "multirun.yaml")
        jobs = SweepJobs(self.directory).jobs.values()
        self._failed = {tuple(job["overrides"]) for job in jobs if job["status"] == FAILED}
        Sweep.expect(self.settings.n_trials)
        (self.directory / TUNE).unlink(missing_ok=True)
        if self.settings.scheduler is not None:
            known = {"metric": self.metric, "mode": self.mode, "seed": self.draws.seed}
            write_json(self.directory / TUNE, {"scheduler": self.settings.scheduler} | known)
        with Sweep.answering():
            self._search(searcher)

    def _check(self) -> None:
        """Raise ConfigError, before anything is written, for what can't be composed, made or asked."""
        composed = [*map(JobConfigs(self.config, self.loader).compose, self.space.corners())]
        if (scheduler := self.settings.scheduler) is None:
            return
        make("hydra.sweeper.scheduler", scheduler).set_search_properties(self.metric, self.mode)
        if OmegaConf.select(composed[0], "callbacks.stopping") is None:
            accepted = "needs callbacks.stopping; accepted is sweep=ray_tune, which has it, or null"
            raise config_error("hydra.sweeper.scheduler", scheduler["_target_"], accepted)

    def _searcher(self) -> Any:
        if self.settings.searcher is None:
            return self.draws
        searcher = make("hydra.sweeper.searcher", self.settings.searcher, self.draws.seed)
        searcher.set_search_properties(self.metric, self.mode, self.draws.domains)
        return searcher

    def _search(self, searcher: Any) -> None:
        """As many trials as `n_jobs` at once; which of them end early is asked by the jobs."""
        for first in range(0, self.settings.n_trials, self.settings.n_jobs):
            numbers = range(first, min(first + self.settings.n_jobs, self.settings.n_trials))
            drawn = [values for number in numbers if isinstance(values := searcher.suggest(str(number)), dict)]
            for number, record in zip(numbers, self._launch([self._point(values) for values in drawn]), strict=False):
                result = None if record is None else {TIME: 1, self.metric: record["metrics"][self.metric]}
                searcher.on_trial_complete(str(number), result, error=record is None)
            if len(drawn) < len(numbers):  # a searcher that has tried everything
                return

    def _point(self, values: Mapping[str, Any]) -> Point:
        return (*self.space.constants, *(f"{self.draws.keys[name]}={value}" for name, value in values.items()))

    def _launch(self, points: Sequence[Point]) -> list[dict[str, Any] | None]:
        """Returns the records of jobs; None of one that has failed, or can't start. The same point is trained once."""
        records: dict[Point, dict[str, Any]] = {}
        todo = [point for point in dict.fromkeys(points) if point not in self._failed]
        while todo:
            try:
                returned = self.launcher.launch(todo, initial_job_idx=0)
            except RefusedJob as refusal:
                self._patience -= 1
                if not self._patience:
                    raise
                log.warning(str(refusal))
                todo.pop(refusal.number)
                continue
            self._patience = math.inf
            states = {job["directory"]: job["status"] for job in SweepJobs(self.directory).jobs.values()}
            folders = dict(zip(todo, (Path(str(one.working_dir)) for one in returned), strict=True))
            if any(states[folder.name] not in (FINISHED, FAILED) for folder in folders.values()):
                raise KeyboardInterrupt  # a job was interrupted, though not the sweep: the same command continues both
            records = {point: read_record(folder) or {} for point, folder in folders.items() if states[folder.name] == FINISHED}
            break
        return [records.get(point) for point in points]
