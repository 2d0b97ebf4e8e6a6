"""A search's study on disk: Optuna's, in the sweep's directory, for the sweeper, its jobs and its report."""

import itertools
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from lockstep.atomic_files import is_like, read_json, write_json
from lockstep.config.construct import construct
from lockstep.errors import config_error
from lockstep.extras.search.files import SEARCH
from lockstep.sweeps.job_directory import read_metadata

log = logging.getLogger(__name__)

STUDY = "study.log"
POINT = "overrides"  # a trial's attribute: the overrides of its job
_NAME = "search"
_ENDED = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
_DIRECTIONS = {"max": StudyDirection.MAXIMIZE, "min": StudyDirection.MINIMIZE}

optuna.logging.set_verbosity(optuna.logging.WARNING)


def read_search(directory: Path) -> dict[str, Any] | None:
    """Returns what `open_study` has written: the metric with its mode, and the pruner; None if there is no search."""
    shape = {"storage": str, "objectives": {str: (*_DIRECTIONS,)}, "pruner": dict}
    return read_json(directory / SEARCH, shape, lambda known: len(known["objectives"]) == 1)


def open_study(directory: Path, metric: str, mode: str, pruner: dict[str, Any]) -> optuna.Study:
    """The study of a sweep's directory, which nobody else has: a new one, or the one that is to go on. Raises ConfigError where
    that one is another."""
    current = {"storage": "journal", "objectives": {metric: mode}, "pruner": pruner}
    saved = (read_json(directory / SEARCH) or {}) | {"pruner": pruner}
    if saved != current and len(saved) > 1:
        known = f"{saved.get('objectives')} in {saved.get('storage')}"
        accepted = f"the study in {directory} is of {known}; accepted is another hydra.sweep.dir"
        raise config_error("optimized_metric", metric, accepted)
    write_json(directory / SEARCH, current)
    _mend(directory / STUDY)
    return load_study(directory, prunes=True)


def load_study(directory: Path, prunes: bool = False) -> optuna.Study:
    """The study of a directory in which a search has begun; without its pruner for who only looks."""
    known = read_search(directory)
    if known is None:
        raise config_error("SWEEP_DIR", directory, "has no search; accepted is the directory of hydra/sweeper=optuna")
    return optuna.create_study(
        study_name=_NAME,
        storage=_storage(directory / STUDY),
        sampler=optuna.samplers.RandomSampler(),  # for who only looks; a search sets one for every trial
        pruner=construct("hydra.sweeper.pruner", known["pruner"]) if prunes else optuna.pruners.NopPruner(),
        direction=_DIRECTIONS[next(iter(known["objectives"].values()))],
        load_if_exists=True,
    )


def _storage(file: Path) -> JournalStorage:
    try:
        return JournalStorage(JournalFileBackend(str(file)))
    except (ValueError, TypeError, KeyError) as error:
        accepted = "the sweep's command, or sweep.py resume, mends it"
        raise config_error("SWEEP_DIR", file.parent, f"{file.name} is damaged ({error}); {accepted}") from error


def summarize(trials: Sequence[FrozenTrial]) -> str:
    """How many of them have ended in which way: 17 complete, 2 pruned, 1 failed."""
    states = [trial.state for trial in trials]
    return ", ".join(f"{states.count(state)} {word}" for state, word in _ENDED.items() if state in states)


def complete_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the complete trials, the best one first."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(done, key=lambda trial: trial.value or 0.0, reverse=study.direction == StudyDirection.MAXIMIZE)


def failed_trials(study: optuna.Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.FAIL,))


def find_trial(run_dir: Path) -> Trial | None:
    """The trial that a job of the search above its directory is; None where it is none that is under way."""
    study, overrides = load_study(run_dir.parent, prunes=True), (read_metadata(run_dir) or {}).get("overrides")
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return next((resume_trial(study, trial) for trial in running if trial.user_attrs.get(POINT) == overrides), None)


def resume_trial(study: optuna.Study, trial: FrozenTrial) -> Trial:
    """A trial that has begun, to go on with: Optuna has no other way to one of another process."""
    return Trial(study, trial._trial_id)


def _mend(path: Path) -> None:
    """Leaves the lines before the first one that is damaged, or that a full disk or a loss of power has cut off: Optuna would
    read none that follows. What is left out is told anew from the jobs, of which those that have finished are not run again."""
    if not path.is_file():
        return
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        lines = path.read_bytes().splitlines(keepends=True)
        whole = [*itertools.takewhile(_is_whole, lines)]
        os.truncate(path, sum(map(len, whole)))
    finally:
        lock.release()
    if len(whole) < len(lines) - 1:
        log.warning(f"{path}: damaged from line {len(whole) + 1} on; its trials are told anew from their jobs")


def _is_whole(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and is_like(json.loads(line), {"op_code": int, "worker_id": str})
    except (ValueError, RecursionError):
        return False
