"""A sampler of Optuna's that is interrupted while it draws a trial: between two batches of a search."""

import os
import signal
from typing import Any

from optuna.samplers import RandomSampler


class Interrupted(RandomSampler):
    """By Ctrl-C, in the second trial, where INTERRUPT is set."""

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        if trial.number == 1 and "INTERRUPT" in os.environ:
            os.kill(os.getpid(), signal.SIGINT)
        return super().sample_independent(study, trial, param_name, param_distribution)
