"""A search space, from the overrides of a command line: what Hydra would sweep over is a distribution of Optuna's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from hydra.core.override_parser.types import IntervalSweep, Override
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from lockstep.errors import config_error

_LOG = "log"
Distribution = FloatDistribution | IntDistribution | CategoricalDistribution


@dataclass(frozen=True)
class Space:
    """constants: the overrides that every trial has. distributions: by the key of the override."""

    constants: tuple[str, ...]
    distributions: dict[str, Distribution]

    @classmethod
    def from_overrides(cls, overrides: Sequence[Override]) -> Self:
        """The last override of a key counts. Raises ConfigError for what is no space, and where there is none."""
        last = {override.get_key_element(): override for override in overrides}
        fixed = {key: one for key, one in last.items() if not one.is_sweep_override()}
        distributions = {key: _distribution(key, one) for key, one in last.items() if one.is_sweep_override()}
        if not distributions:
            accepted = "there is nothing to search; use an override such as 'model.optimizer.lr=tag(log,interval(1e-4,1e-1))'"
            raise config_error("hydra/sweeper", "optuna", accepted)
        return cls(tuple(f"{key}={one.get_value_element_as_str()}" for key, one in fixed.items()), distributions)

    def point(self, trial: Trial) -> tuple[str, ...]:
        """The overrides of a trial; what it has no value of yet is drawn."""
        return (*self.constants, *(f"{key}={_drawn(trial, key, one)}" for key, one in self.distributions.items()))


def _distribution(key: str, override: Override) -> Distribution:
    """Return the distribution of interval(), or else the choices that Hydra's own sweeper would take."""
    sweep: Any = override.value()
    tags = set(getattr(sweep, "tags", ()))
    if unknown := tags - ({_LOG} if isinstance(sweep, IntervalSweep) else set()):
        names = ", ".join(sorted(unknown))
        raise config_error(key, override.get_value_string(), f"tag {names} is not known here; use tag(log,interval(LOW,HIGH))")
    if not isinstance(sweep, IntervalSweep):
        return CategoricalDistribution(list(dict.fromkeys(override.sweep_string_iterator())))
    are_integers = isinstance(sweep.start, int) and isinstance(sweep.end, int)  # int(interval(1,8))
    kind: Any = IntDistribution if are_integers else FloatDistribution
    try:
        return kind(sweep.start, sweep.end, log=_LOG in tags)
    except ValueError as error:
        raise config_error(key, override.get_value_string(), str(error)) from error


def _drawn(trial: Trial, key: str, one: Distribution) -> Any:
    if isinstance(one, CategoricalDistribution):
        return trial.suggest_categorical(key, one.choices)
    suggest: Any = trial.suggest_float if isinstance(one, FloatDistribution) else trial.suggest_int
    return suggest(key, one.low, one.high, log=one.log)
