"""Schedulers of Ray Tune, as pruners of a study."""

import importlib.util
from typing import Any

import optuna
import pytest

from lockstep.config.construct import construct

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'")
ASHA = {"_target_": "ray.tune.schedulers.ASHAScheduler", "max_t": 100, "reduction_factor": 2}
MEDIAN = {"_target_": "ray.tune.schedulers.MedianStoppingRule", "min_samples_required": 2, "grace_period": 1}
AT_ONE = [("a", 1, 0.5), ("b", 1, 0.7), ("c", 1, 0.65), ("d", 1, 0.55)]
# of rungs at 1 and 2 validations. b: 0.4 < 0.5; c: 0.45 of 0.5, 0.4 and 0.5 < 0.6
OVER_RUNGS = [("a", 1, 0.5), ("a", 2, 0.6), ("b", 1, 0.4), ("c", 1, 0.45), ("c", 2, 0.5), ("d", 1, 0.7), ("d", 2, 0.65)]


def pruner(scheduler: dict[str, Any]) -> Any:
    node = {"_target_": "lockstep.ray_cluster.tune.SchedulerPruner", "scheduler": scheduler | {"_partial_": True}}
    return construct("hydra.sweeper.pruner", node)


def ends(scheduler: dict[str, Any], told: list[tuple[str, int, float]]) -> list[bool]:
    """The answers to trials that report one after the other: name, number of validations, metric."""
    study = optuna.create_study(direction="maximize", pruner=pruner(scheduler))
    trials = {name: study.ask() for name in dict.fromkeys(name for name, _, _ in told)}
    answers = []
    for name, validations, value in told:
        trials[name].report(value, validations - 1)
        answers.append(trials[name].should_prune())
    return answers


def test_asha_ends_what_is_worse_than_half_of_those_that_came_as_far() -> None:
    """By a factor of 2 a job goes on from a rung if it is no worse than the median there."""
    assert ends(ASHA, OVER_RUNGS) == [False, False, True, False, True, False, False]


def test_the_median_rule_ends_what_never_was_as_good_as_others_on_average() -> None:
    assert ends(MEDIAN, AT_ONE) == [False, False, False, True]
