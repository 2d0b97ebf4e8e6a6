"""Which searchers and schedulers of Ray Tune a search can have, with their arguments where time is counted in validations."""

import importlib
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.config.construct import construct
from lockstep.errors import config_error

TIME = "training_iteration"  # what Ray Tune calls the number of a trial's reports
SEARCHERS: dict[str, dict[str, Any]] = {
    "OptunaSearch": {"_target_": "ray.tune.search.optuna.OptunaSearch"},
    "HyperOptSearch": {"_target_": "ray.tune.search.hyperopt.HyperOptSearch"},
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "ASHAScheduler": {"_target_": "ray.tune.schedulers.ASHAScheduler", "max_t": 1000, "stop_last_trials": False},
    "MedianStoppingRule": {"_target_": "ray.tune.schedulers.MedianStoppingRule", "grace_period": 1},
}


def part(key: str, value: Any, parts: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the node of a name, or of a node whose arguments come before those here. Raises ConfigError for another class: some
    pause a trial until others have come as far, and go on with its process."""
    target = value.get("_target_", "") if isinstance(value, Mapping) else value
    if value is None:
        return None
    name = str(target).rpartition(".")[2]
    if name not in parts or target not in (name, parts[name]["_target_"]):
        raise config_error(key, target, f"accepted is {', '.join(parts)}, or null")
    return parts[name] | (dict(value) if isinstance(value, Mapping) else {}) | {"_target_": parts[name]["_target_"]}


def make(key: str, node: dict[str, Any], seed: int = 0) -> Any:
    """Raises ConfigError for arguments that it does not take or a sweep sets itself, and where its library is missing."""
    given = {"time_attr": TIME, "metric": None, "mode": None, "space": None, "seed": seed, "random_state_seed": seed}
    logging.getLogger("ray.tune").setLevel(logging.WARNING)
    try:
        return construct(key, node, given)
    except AssertionError as error:  # by which Ray Tune checks them
        raise config_error(key, node["_target_"], f"{error}; accepted is what it takes") from error


def distribution(one: Any) -> Any:
    """Returns one of Optuna's, of which a search space is made, as Ray Tune's."""
    tune = importlib.import_module("ray.tune")
    if hasattr(one, "choices"):
        return tune.choice(list(one.choices))
    is_integer = isinstance(one.low, int)
    if one.log:
        return tune.lograndint(one.low, one.high + 1) if is_integer else tune.loguniform(one.low, one.high)
    if one.step is not None:
        values = (one.low + number * one.step for number in range(round((one.high - one.low) / one.step) + 1))
        return tune.choice([value if is_integer else float(f"{value:.12g}") for value in values])
    return tune.uniform(one.low, one.high)


class Draws:
    """Random search, and the names that Ray Tune has for keys: it divides names at each `/`. What is drawn is counted from the
    seed and the trial's number."""

    def __init__(self, domains: Mapping[str, Any], seed: int) -> None:
        self.seed = seed
        self.keys = {key.replace("/", "|"): key for key in domains}
        self.domains = {name: domains[key] for name, key in self.keys.items()}

    def __call__(self, number: int) -> dict[str, Any]:
        generator = np.random.default_rng((self.seed, number))
        drawn = {name: domain.sample(random_state=generator) for name, domain in self.domains.items()}
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in drawn.items()}

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return self(int(trial_id))

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Hears what has come of a trial, as a searcher does; nothing follows from it."""
