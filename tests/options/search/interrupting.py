"""A sampler of Optuna's that is interrupted while it draws a trial: between two batches of a search."""

import os
import signal
from typing import Any

from optuna.samplers import RandomSampler


class Interrupted(RandomSampler):
    """In the second trial, as INTERRUPT says: by a signal of that name, or an error of its own."""

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        if trial.number == 1 and (how := os.environ.get("INTERRUPT")) is not None:
            if how == "raise":
                raise ArithmeticError("planted fault")
            os.kill(os.getpid(), signal.Signals[how])
        return super().sample_independent(study, trial, param_name, param_distribution)
