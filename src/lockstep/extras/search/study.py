"""A search's study on disk: Optuna's, in the sweep's directory, for the sweeper, its jobs and its report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from lockstep.config.construct import construct
from lockstep.errors import config_error
from lockstep.extras.search import STUDY
from lockstep.sweeps.sweep_jobs import JobView

POINT = "overrides"  # a trial's attribute: the overrides of its job
_METRIC, _PRUNER = "metric", "pruner"  # attributes of the study
_ENDED = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}

optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_study(directory: Path, metric: str, mode: str, pruner: dict[str, Any]) -> optuna.Study:
    """Return the study of a sweep's directory, a new one or the one that is to go on. Raise ConfigError if that is of another
    metric."""
    direction = StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE
    study = _study(directory, direction=direction)
    if (known := study.user_attrs.get(_METRIC, metric)) != metric or study.direction != direction:
        words = f"the study in {directory} is of {known} ({study.direction.name.lower()}); give another hydra.sweep.dir"
        raise config_error("optimized_metric", metric, words)
    study.set_user_attr(_METRIC, metric)
    study.set_user_attr(_PRUNER, pruner)
    return study


def load_study(directory: Path) -> optuna.Study:
    """Return the study of a search that has begun, for who only looks. Raise ConfigError if there is none."""
    if not (directory / STUDY).is_file():
        raise config_error("SWEEP_DIR", directory, "has no search; use the directory of hydra/sweeper=optuna")
    return _study(directory)


def _study(directory: Path, **options: Any) -> optuna.Study:
    try:
        storage = JournalStorage(JournalFileBackend(str(directory / STUDY)))
    except (ValueError, TypeError, KeyError) as error:
        words = f"{STUDY} is damaged ({error}); remove it, and the sweep's command tells the study anew from its jobs"
        raise config_error("SWEEP_DIR", directory, words) from error
    asks_nobody = {"sampler": optuna.samplers.RandomSampler(), "pruner": optuna.pruners.NopPruner()}
    return optuna.create_study(study_name="search", storage=storage, load_if_exists=True, **asks_nobody, **options)


def optimized_metric(study: optuna.Study) -> tuple[str, str]:
    """Return the metric of a study, and min or max."""
    return study.user_attrs[_METRIC], study.direction.name.lower()[:3]


def summarize(trials: Sequence[FrozenTrial]) -> str:
    """Return how many of them have ended in which way: 17 complete, 2 pruned, 1 failed."""
    states = [trial.state for trial in trials]
    return ", ".join(f"{states.count(state)} {word}" for state, word in _ENDED.items() if state in states)


def complete_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the complete trials, the best one first."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(done, key=lambda trial: trial.value or 0.0, reverse=study.direction == StudyDirection.MAXIMIZE)


def find_trial(run_dir: Path) -> Trial | None:
    """Return the trial that a job of a search is, with the study's pruner; None if it is none that is under way."""
    study, job = load_study(run_dir.parent), JobView.read(run_dir, is_sweep_running=True)
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    trial = next((one for one in running if job is not None and one.user_attrs.get(POINT) == job.overrides), None)
    study.pruner = construct("hydra.sweeper.pruner", study.user_attrs[_PRUNER])
    return None if trial is None else resume_trial(study, trial)


def resume_trial(study: optuna.Study, trial: FrozenTrial) -> Trial:
    """Return a trial that has begun, to go on with: Optuna has no other way to one of another process."""
    return Trial(study, trial._trial_id)
