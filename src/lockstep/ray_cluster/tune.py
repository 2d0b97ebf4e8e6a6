"""Schedulers of Ray Tune as pruners of a search: `sweep=ray_tune`."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from optuna.pruners import BasePruner
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

_TIME, _VALUE = "training_iteration", "value"  # what Ray Tune calls the number of a trial's reports; the optimized metric


class _Trial(NamedTuple):
    """Stand-in for a trial, with what schedulers ask that only continue or stop it."""

    trial_id: str


class SchedulerPruner(BasePruner):
    """End a trial when a scheduler of Ray Tune's stops it: ASHAScheduler, MedianStoppingRule.

    The scheduler is made anew for each question, and hears what the study has of all trials, in the order of their validations:
    its own files would be pickles, which a stranger's directory must not bring.
    """

    def __init__(self, scheduler: Callable[..., Any], seed: int = 0) -> None:
        """seed: of the bracket that ASHA draws for a trial."""
        self.scheduler, self.seed = scheduler, seed

    def _make(self, mode: str) -> Any:
        scheduler = self.scheduler(time_attr=_TIME)
        scheduler.set_search_properties(_VALUE, mode)
        return scheduler

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        scheduler = self._make("max" if study.direction == StudyDirection.MAXIMIZE else "min")
        controller, trials = SimpleNamespace(get_live_trials=list, get_trials=list), study.get_trials(deepcopy=False)
        reports = sorted((step, one.number == trial.number, one.number) for one in trials for step in one.intermediate_values)
        known, decision = dict[int, _Trial](), "CONTINUE"
        for step, is_own, number in reports:
            with _drawing_from(self.seed, number):
                if number not in known:
                    known[number] = _Trial(str(number))
                    scheduler.on_trial_add(controller, known[number])
                result = {_TIME: step + 1, _VALUE: trials[number].intermediate_values[step]}
                decision = scheduler.on_trial_result(controller, known[number], result)
            if is_own and step == trial.last_step:
                break
        return decision == "STOP"


@contextlib.contextmanager
def _drawing_from(*seed: int) -> Iterator[None]:
    """Seed numpy's global generator, from which ASHA draws a bracket, and restore it afterwards."""
    kept = np.random.get_state()
    np.random.seed(np.random.SeedSequence(seed).generate_state(4))
    try:
        yield
    finally:
        np.random.set_state(kept)
