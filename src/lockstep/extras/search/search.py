"""A search: Optuna says which points to try, the launcher tries them, and the study in the sweep's directory remembers."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.launcher import Launcher
from numpy.random import SeedSequence
from omegaconf import DictConfig, OmegaConf
from optuna.trial import FrozenTrial, Trial, TrialState

from lockstep.config.construct import construct, resolve
from lockstep.config.rules import Rule, integer
from lockstep.extras.search import PRUNED
from lockstep.extras.search.space import Space
from lockstep.extras.search.study import POINT, complete_trials, open_study, resume_trial, summarize
from lockstep.sweeps.composition import JobConfigs
from lockstep.sweeps.jobs import INTERRUPTED
from lockstep.sweeps.settings import Keys
from lockstep.sweeps.sweep import RefusedJob, Sweep
from lockstep.sweeps.sweep_jobs import JobView

log = logging.getLogger(__name__)
Point = tuple[str, ...]  # the overrides of a job
_REFUSALS = 5  # of as many points as that one has to be able to start
_OF_ONE_SEED = (optuna.samplers.GridSampler, optuna.samplers.QMCSampler)  # which points these try is their seed's
SPACES = Rule("use {KEY: SPACE}", lambda v: isinstance(v, Mapping))


@dataclass
class Settings(Keys):
    """hydra.sweeper.KEY=VALUE; conf/hydra/sweeper/optuna.yaml says what each means."""

    GROUP: ClassVar[str] = "hydra.sweeper"

    n_trials: Annotated[int, integer(1)] = 20
    n_jobs: Annotated[int, integer(1)] = 1
    sampler: Any = "TPESampler"
    pruner: Any = "MedianPruner"
    params: Annotated[Any, SPACES] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sampler, self.pruner = _node(self.sampler, "samplers"), _node(self.pruner or "NopPruner", "pruners")


def _node(value: Any, module: str) -> Any:
    """Return the node of a name: TPESampler is one of optuna.samplers."""
    if not isinstance(value, str):
        return value
    return {"_target_": value if "." in value else f"optuna.{module}.{value}"}


class Search:
    """n_trials in all, those of earlier calls counted. A trial under way when the sweep died is handed out again, and the
    launcher continues its job; one that has ended, failed or not, never is. The same point twice is trained once."""

    def __init__(self, config: DictConfig, loader: Any, settings: Settings, launcher: Launcher) -> None:
        self.config, self.loader, self.settings, self.launcher = config, loader, settings, launcher
        self.directory = Path(str(config.hydra.sweep.dir)).absolute()
        self._interrupted: set[int] = set()  # trials whose jobs are to be continued by another call
        self._is_exhausted = False
        self._patience: float = _REFUSALS

    def run(self, arguments: Sequence[str]) -> None:
        given = [f"{key}={space}" for key, space in self.settings.params.items()]
        self.space = Space.from_overrides(OverridesParser.create(self.loader).parse_overrides([*given, *arguments]))
        self.check()
        if self.config.hydra.launcher.get("dry_run"):
            self.study = optuna.create_study()
            self.launcher.launch([self._point(self._ask()) for _ in range(self.settings.n_jobs)], 0)
            return
        self.open()
        Sweep.expect(self.settings.n_trials)
        with Sweep.answering():
            while numbers := self._batch():
                self._try(numbers)
        print(f"\n{self._best()}", flush=True)

    def check(self) -> list[DictConfig]:
        """Check, before anything is written, what Optuna is made of, and that all choices can be composed; return the configs."""
        configs = JobConfigs(self.config, self.loader)
        composed = [configs.compose(point) for point in self.space.corners()]
        self._sampler(0)
        construct("hydra.sweeper.pruner", self.settings.pruner)
        return composed

    def open(self) -> None:
        """Begin the study, or go on with the one of an earlier call. Raise ConfigError where it is another."""
        OmegaConf.save(self.config, self.directory / "multirun.yaml")
        self.study = open_study(self.directory, self.config.optimized_metric, self.config.optimized_mode, self.settings.pruner)
        self.study.stop = self._stop  # pyright: ignore[reportAttributeAccessIssue]  called by a sampler that has tried everything
        if trials := self._trials():
            self.space.check(trials[-1].distributions)

    def _stop(self) -> None:
        self._is_exhausted = True

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _batch(self) -> list[int]:
        """Return the trials to try now: first those that an earlier call has left."""
        trials = [trial for trial in self._trials() if trial.state != TrialState.WAITING]
        left = [trial.number for trial in trials if trial.state == TrialState.RUNNING and trial.number not in self._interrupted]
        room = 0 if self._is_exhausted else min(self.settings.n_jobs - len(left), self.settings.n_trials - len(trials))
        return left[: self.settings.n_jobs] + [self._ask() for _ in range(room)]

    def _ask(self) -> int:
        self.study.sampler = self._sampler(len(self._trials()))
        return self.study.ask().number

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """Make the sampler of one trial. It draws from the seed and the trial's number, so that a search that is resumed draws
        what it would have drawn."""
        node = dict(self.settings.sampler)
        seed = node.pop("seed", None)
        if seed is not None and resolve("hydra.sweeper.sampler", node["_target_"]) not in _OF_ONE_SEED:
            seed = int(SeedSequence((seed, number)).generate_state(1)[0])
        return construct("hydra.sweeper.sampler", node, {"seed": seed})

    def _trial(self, number: int) -> Trial:
        return resume_trial(self.study, self._trials()[number])

    def _point(self, number: int) -> Point:
        """Return the point of a trial; what a killed sweep has not come to draw of it is drawn now."""
        trial = self._trial(number)
        point = self.space.point(trial)
        trial.set_user_attr(POINT, list(point))
        return point

    def _try(self, numbers: Sequence[int]) -> None:
        """Run the jobs of these trials, and tell Optuna what has come of them. A point that was tried before is not tried again;
        one at which a run can't start has failed."""
        points: dict[Point, list[int]] = {}
        for number in numbers:
            points.setdefault(self._point(number), []).append(number)
        tried = {tuple(trial.user_attrs.get(POINT, ())): trial for trial in self._trials() if trial.state.is_finished()}
        for point in points.keys() & tried.keys():
            known = tried[point]
            self._tell(points.pop(point), known.state, known.value, **{**known.user_attrs, POINT: list(point)})
        while points:
            try:
                returned = self.launcher.launch([*points], initial_job_idx=len(self._trials()))
            except RefusedJob as refusal:
                self._patience -= 1
                if not self._patience:
                    raise
                log.warning(str(refusal))
                self._tell(points.pop([*points][refusal.number]), TrialState.FAIL, reason=str(refusal))
                continue
            self._patience = math.inf
            for numbers, one in zip(points.values(), returned, strict=True):
                self._conclude(numbers, Path(str(one.working_dir)))
            return

    def _conclude(self, numbers: Sequence[int], folder: Path) -> None:
        job, metric = JobView.read(folder, is_sweep_running=False), self.config.optimized_metric
        assert job is not None
        metrics = job.record.get("metrics", {})
        if job.status == INTERRUPTED:
            self._interrupted |= {*numbers}
        elif PRUNED in job.record:
            self._tell(numbers, TrialState.PRUNED, directory=folder.name)
        elif metrics.get(metric) is not None:
            self._tell(numbers, TrialState.COMPLETE, metrics[metric], directory=folder.name)
        else:
            reason = job.reason or f"{metric} is not in its metrics.json"
            self._tell(numbers, TrialState.FAIL, directory=folder.name, reason=reason)

    def _tell(self, numbers: Sequence[int], state: TrialState, value: float | None = None, **attributes: Any) -> None:
        for number in numbers:
            trial = self._trial(number)
            for name, what in attributes.items():
                trial.set_user_attr(name, what)
            self.study.tell(number, value if state == TrialState.COMPLETE else None, state)

    def _best(self) -> str:
        lines = [f"{len(self._trials())} trials: {summarize(self._trials())}."]
        for best in complete_trials(self.study)[:1]:
            point = " ".join(f"{key}={value}" for key, value in best.params.items())
            lines.append(f"best: {self.config.optimized_metric} {best.value:.6g} with {point}")
        return "\n".join(lines)
