"""A search: Optuna says which points to try, the launcher tries them, and the study in the sweep's directory remembers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from numpy.random import SeedSequence
from omegaconf import DictConfig, OmegaConf
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from lockstep.config.construct import naming
from lockstep.errors import ConfigError
from lockstep.launchers.stop_signals import Preempted
from lockstep.search import PRUNED
from lockstep.search.space import Space
from lockstep.search.study import POINT, open_study, resume_trial
from lockstep.sweeps.jobs import PREEMPTED, Job

log = logging.getLogger(__name__)
Point = tuple[str, ...]  # the overrides of a job


@dataclass(kw_only=True)
class Search:
    """n_trials in all, those of earlier calls counted. A trial under way when the sweep died is handed out again, and the
    launcher continues its job; one that has ended never is. The same point twice is trained once, unless it has failed."""

    config: DictConfig
    loader: Any
    sweep: Any  # lockstep.sweeps.sweep.Sweep
    sampler: Callable[..., BaseSampler]  # conf/hydra/sweeper/optuna.yaml says what this and the next ones mean
    pruner: BasePruner | None = None
    n_trials: int = 20
    n_jobs: int = 1
    seed: int | None = 0
    params: dict[str, str] | None = None

    def __post_init__(self) -> None:
        self.directory = Path(str(self.config.hydra.sweep.dir)).absolute()
        self._interrupted: set[int] = set()  # trials whose jobs are to be continued by another call
        self._sampler(0)  # raises what it does not take

    def run(self, arguments: Sequence[str]) -> None:
        """Begin the study, or go on with the one of an earlier call. Raise ConfigError where that is of another metric."""
        given = [f"{key}={space}" for key, space in (self.params or {}).items()]
        self.space = Space.from_overrides(OverridesParser.create(self.loader).parse_overrides([*given, *arguments]))
        if self.config.hydra.launcher.get("dry_run"):
            self.study = optuna.create_study()
            self.sweep.run(self.sweep.check([self._point(self._ask()) for _ in range(self.n_jobs)]))
            return
        OmegaConf.save(self.config, self.directory / "multirun.yaml")
        pruner: Any = OmegaConf.to_container(self.config.hydra.sweeper).get("pruner")  # pyright: ignore
        self.study = open_study(self.directory, self.config.optimized_metric, self.config.optimized_mode, pruner)
        try:
            while numbers := self._batch():
                self._try(numbers)
        except ConfigError:
            raise
        except (KeyboardInterrupt, Preempted, Exception) as error:
            self.sweep.break_off(error)
            raise

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _batch(self) -> list[int]:
        """Return the trials to try now: first those that an earlier call has left."""
        trials = [trial for trial in self._trials() if trial.state != TrialState.WAITING]
        left = [trial.number for trial in trials if trial.state == TrialState.RUNNING and trial.number not in self._interrupted]
        room = min(self.n_jobs - len(left), self.n_trials - len(trials))
        return left[: self.n_jobs] + [self._ask() for _ in range(room)]

    def _ask(self) -> int:
        self.study.sampler = self._sampler(len(self._trials()))
        return self.study.ask().number

    def _sampler(self, number: int) -> BaseSampler:
        """Make the sampler of one trial. It draws from the seed and the trial's number, so that a search that is resumed draws
        what it would have drawn."""
        with naming("hydra.sweeper.sampler"):
            if self.seed is None:
                return self.sampler()
            return self.sampler(seed=int(SeedSequence((self.seed, number)).generate_state(1)[0]))

    def _trial(self, number: int) -> Trial:
        return resume_trial(self.study, self._trials()[number])

    def _point(self, number: int) -> Point:
        """Return the point of a trial; what a killed sweep has not come to draw of it is drawn now."""
        trial = self._trial(number)
        point = self.space.point(trial)
        trial.set_user_attr(POINT, list(point))
        return point

    def _try(self, numbers: Sequence[int]) -> None:
        """Run the jobs of these trials and tell Optuna their ends. A point that can't start has failed."""
        jobs: dict[int, Job] = {}
        for number in numbers:
            try:
                jobs[number] = self.sweep.compose(self._point(number))
            except ConfigError as error:
                self._tell(number, TrialState.FAIL, reason=str(error))
                if number >= 4 and all(trial.state == TrialState.FAIL for trial in self._trials()):
                    raise  # none of five points could be tried
                log.warning(str(error))
        if jobs:
            for number, job in zip(jobs, self.sweep.run([*jobs.values()]), strict=True):
                self._conclude(number, job)

    def _conclude(self, number: int, job: Job) -> None:
        if job.status == PREEMPTED:
            self._interrupted.add(number)
        elif PRUNED in job.record:
            self._tell(number, TrialState.PRUNED, directory=job.directory.name)
        elif job.metric is not None:
            self._tell(number, TrialState.COMPLETE, job.metric, directory=job.directory.name)
        else:
            self._tell(number, TrialState.FAIL, directory=job.directory.name, reason=job.reason)

    def _tell(self, number: int, state: TrialState, value: float | None = None, **attributes: Any) -> None:
        trial = self._trial(number)
        for name, what in attributes.items():
            trial.set_user_attr(name, what)
        self.study.tell(number, value, state)
