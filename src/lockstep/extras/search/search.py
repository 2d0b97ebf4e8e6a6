"""A search: Optuna says which points to try, the launcher tries them, and the study in the sweep's directory remembers."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.launcher import Launcher
from numpy.random import SeedSequence
from omegaconf import DictConfig, OmegaConf
from optuna.trial import Trial, TrialState

from lockstep.config.construct import construct, resolve
from lockstep.config.rules import Rule, integer
from lockstep.extras.search.files import PRUNED
from lockstep.extras.search.space import Space
from lockstep.extras.search.study import POINT, complete_trials, open_study, resume_trial, summarize
from lockstep.sweeps.composition import JobConfigs
from lockstep.sweeps.job_directory import read_record
from lockstep.sweeps.settings import Keys
from lockstep.sweeps.states import FINISHED, INTERRUPTED
from lockstep.sweeps.sweep import RefusedJob, Sweep
from lockstep.sweeps.sweep_jobs import SweepJobs

log = logging.getLogger(__name__)

Point = tuple[str, ...]  # the overrides of a job
_REFUSALS = 5  # of as many points as that one has to be able to start
# Which points these try, and not only which one is next, is their seed's.
_OF_ONE_SEED = (optuna.samplers.GridSampler, optuna.samplers.QMCSampler)
_SPACES = Rule("accepted is {KEY: SPACE}", lambda v: isinstance(v, Mapping))


@dataclass
class Settings(Keys):
    """hydra.sweeper.KEY=VALUE; conf/hydra/sweeper/optuna.yaml says what each means."""

    GROUP: ClassVar[str] = "hydra.sweeper"

    n_trials: Annotated[int, integer(1)] = 20
    n_jobs: Annotated[int, integer(1)] = 1
    sampler: Any = "TPESampler"
    pruner: Any = "MedianPruner"
    params: Annotated[Any, _SPACES] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sampler, self.pruner = _node(self.sampler, "samplers"), _node(self.pruner or "NopPruner", "pruners")


def _node(value: Any, module: str) -> Any:
    """TPESampler is one of optuna.samplers."""
    if not isinstance(value, str):
        return value
    return {"_target_": value if "." in value else f"optuna.{module}.{value}"}


class TrialResult(NamedTuple):
    """A trial's state and value for Optuna, and for a person the job's directory and why it has failed."""

    state: TrialState
    value: float | None = None
    directory: str | None = None
    reason: str | None = None


class Search:
    """n_trials in all, those of earlier calls counted. A trial under way when the sweep died is handed out again, and the
    launcher continues its job; one that has ended, failed or not, never is. The same point twice is trained once."""

    def __init__(self, config: DictConfig, loader: Any, settings: Settings, launcher: Launcher) -> None:
        self.config, self.loader, self.settings, self.launcher = config, loader, settings, launcher
        self.directory = Path(str(config.hydra.sweep.dir)).absolute()
        self.metric, self.mode = config.optimized_metric, config.optimized_mode
        self._interrupted: set[int] = set()  # trials whose jobs are to be continued by another call
        self._is_exhausted = False
        self._patience: float = _REFUSALS

    def run(self, arguments: Sequence[str]) -> None:
        given = [f"{key}={space}" for key, space in self.settings.params.items()]
        self.space = Space.from_overrides(OverridesParser.create(self.loader).parse_overrides([*given, *arguments]))
        self._check()
        if self.config.hydra.launcher.get("dry_run"):
            self.study = optuna.create_study()
            self.launcher.launch([self._begun(self._ask()) for _ in range(self.settings.n_jobs)], 0)
            return
        OmegaConf.save(self.config, self.directory / "multirun.yaml")
        self.study = open_study(self.directory, self.metric, self.mode, self.settings.pruner)
        self.study.stop = self._stop  # pyright: ignore[reportAttributeAccessIssue]  called by a sampler that has tried everything
        if trials := self.study.get_trials(deepcopy=False):
            self.space.check(trials[-1].distributions)
        Sweep.expect(self.settings.n_trials)
        with Sweep.answering():
            while numbers := self._batch():
                self._try(numbers)
        print(f"\n{self._best()}", flush=True)

    def _check(self) -> None:
        """Checks, before anything is written, what Optuna is to be made of and whether all that is to be chosen from is there."""
        configs = JobConfigs(self.config, self.loader)
        for point in self.space.corners():
            configs.compose(point)
        self._sampler(0)
        construct("hydra.sweeper.pruner", self.settings.pruner)

    def _stop(self) -> None:
        self._is_exhausted = True

    def _batch(self) -> list[int]:
        """The trials to try now: first those that an earlier call has left."""
        trials = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
        left = [trial.number for trial in trials if trial.state == TrialState.RUNNING and trial.number not in self._interrupted]
        room = 0 if self._is_exhausted else min(self.settings.n_jobs - len(left), self.settings.n_trials - len(trials))
        return left[: self.settings.n_jobs] + [self._ask() for _ in range(room)]

    def _ask(self) -> int:
        self.study.sampler = self._sampler(len(self.study.get_trials(deepcopy=False)))
        return self.study.ask().number

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """Makes the sampler of one trial. What it draws is counted from the seed and the trial's number, so that a search that is
        resumed does not draw again what it had drawn before, but what it would have drawn."""
        node = dict(self.settings.sampler)
        seed = node.pop("seed", None)
        if seed is not None and resolve("hydra.sweeper.sampler", node["_target_"]) not in _OF_ONE_SEED:
            seed = int(SeedSequence((seed, number)).generate_state(1)[0])
        return construct("hydra.sweeper.sampler", node, {"seed": seed})

    def _begun(self, number: int) -> Point:
        """The point of a trial; what a killed sweep has not come to draw of it is drawn now."""
        trial = self._trial(number)
        point = self.space.point(trial)
        trial.set_user_attr(POINT, list(point))
        return point

    def _try(self, numbers: Sequence[int]) -> None:
        """Tells Optuna what has come of these trials, at points that were tried before without trying again."""
        points: dict[Point, list[int]] = {}
        for number in numbers:
            points.setdefault(self._begun(number), []).append(number)
        trials = self.study.get_trials(deepcopy=False)
        tried = {tuple(trial.user_attrs.get(POINT, ())): trial for trial in trials if trial.state.is_finished()}
        for point in [point for point in points if point in tried]:
            known = tried[point]
            value = known.value if known.state == TrialState.COMPLETE else None
            names = [known.user_attrs.get(name) for name in ("directory", "reason")]
            self._tell(points.pop(point), TrialResult(known.state, value, *names))
        self._launch(points)

    def _launch(self, points: dict[Point, list[int]]) -> None:
        """A point at which a run can't start has failed."""
        while points:
            try:
                returned = self.launcher.launch(list(points), initial_job_idx=len(self.study.get_trials(deepcopy=False)))
            except RefusedJob as refusal:
                self._patience -= 1
                if not self._patience:
                    raise
                log.warning(str(refusal))
                self._tell(points.pop(list(points)[refusal.number]), TrialResult(TrialState.FAIL, reason=str(refusal)))
                continue
            self._patience = math.inf
            jobs = {job["directory"]: job for job in SweepJobs(self.directory).jobs.values()}
            for numbers, one in zip(points.values(), returned, strict=True):
                folder = Path(str(one.working_dir))
                if jobs[folder.name]["status"] == INTERRUPTED:
                    self._interrupted |= {*numbers}
                else:
                    self._tell(numbers, self._result(folder, jobs[folder.name]))
            return

    def _result(self, folder: Path, job: Mapping[str, Any]) -> TrialResult:
        record = (read_record(folder) or {}) if job["status"] == FINISHED else {}
        if PRUNED in record:
            return TrialResult(TrialState.PRUNED, None, folder.name)
        if (value := record.get("metrics", {}).get(self.metric)) is not None:
            return TrialResult(TrialState.COMPLETE, value, folder.name)
        return TrialResult(TrialState.FAIL, None, folder.name, job["reason"] or f"{self.metric} is not in its metrics.json")

    def _tell(self, numbers: Sequence[int], result: TrialResult) -> None:
        for number in numbers:
            trial = self._trial(number)
            for name, value in {"directory": result.directory, "reason": result.reason}.items():
                if value is not None:
                    trial.set_user_attr(name, value)
            self.study.tell(number, result.value, result.state)

    def _trial(self, number: int) -> Trial:
        return resume_trial(self.study, self.study.get_trials(deepcopy=False)[number])

    def _best(self) -> str:
        trials = self.study.get_trials(deepcopy=False)
        lines = [f"{len(trials)} trials: {summarize(trials)}."]
        for best in complete_trials(self.study)[:1]:
            point = " ".join(f"{key}={value}" for key, value in best.params.items())
            lines.append(f"best: {self.metric} {best.value:.6g} with {point}")
        return "\n".join(lines)
