"""A search's study on disk: Optuna's, in the sweep's directory, for the sweeper and its jobs."""

from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from lockstep.config.construct import construct
from lockstep.errors import config_error
from lockstep.search import STUDY
from lockstep.sweeps.jobs import Job

POINT = "overrides"  # a trial's attribute: the overrides of its job
_METRIC, _PRUNER = "metric", "pruner"  # attributes of the study

optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_study(directory: Path, metric: str, mode: str, pruner: dict[str, Any] | None) -> optuna.Study:
    """Return the study of a sweep's directory, a new one or the one that is to go on. Raise ConfigError if that is of another
    metric."""
    study = load_study(directory, direction={"max": "maximize", "min": "minimize"}[mode])
    if (known := study.user_attrs.get(_METRIC, metric)) != metric:
        raise config_error("optimized_metric", metric, f"the study in {directory} is of {known}; give another hydra.sweep.dir")
    study.set_user_attr(_METRIC, metric)
    study.set_user_attr(_PRUNER, pruner)
    return study


def load_study(directory: Path, **options: Any) -> optuna.Study:
    """Return the study of a search, which asks nobody: sampler and pruner are set by who needs them."""
    storage = JournalStorage(JournalFileBackend(str(directory / STUDY)))
    asks_nobody = {"sampler": optuna.samplers.RandomSampler(), "pruner": optuna.pruners.NopPruner()}
    return optuna.create_study(study_name="search", storage=storage, load_if_exists=True, **asks_nobody, **options)


def find_trial(run_dir: Path) -> Trial | None:
    """Return the trial that a job of a search is, with the study's pruner; None if it is none that is under way."""
    study, job = load_study(run_dir.parent), Job.read(run_dir)
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    trial = next((one for one in running if job is not None and one.user_attrs.get(POINT) == job.overrides), None)
    if (pruner := study.user_attrs[_PRUNER]) is not None:
        study.pruner = construct("hydra.sweeper.pruner", pruner)
    return None if trial is None else resume_trial(study, trial)


def resume_trial(study: optuna.Study, trial: FrozenTrial) -> Trial:
    """Return a trial that has begun, to go on with: Optuna has no other way to one of another process."""
    return Trial(study, trial._trial_id)
