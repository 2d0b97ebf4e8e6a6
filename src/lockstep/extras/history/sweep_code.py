"""A sweep and its code: it runs what it began with, if that is wanted, and says at its end whether its jobs have run the same.

Hydra makes this callback for single runs too: what it does is imported where it does it.
"""

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class SweepCode(Callback):
    """snapshot: all jobs run the code that the sweep began with, those of a later call too."""

    def __init__(self, snapshot: bool = False) -> None:
        self.snapshot = snapshot

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        if self.snapshot is not False:
            from lockstep.extras.history.snapshot import begin

            begin(config, self.snapshot)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from lockstep.extras.history.sweep_end import compare_code

        compare_code(Path(config.hydra.sweep.dir))
