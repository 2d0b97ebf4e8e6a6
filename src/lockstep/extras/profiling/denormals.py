"""Numbers below the smallest normal ones, with which some processors compute a hundred times as slowly."""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lockstep.errors import config_error


class FlushDenormal(Callback):
    """Takes denormal numbers, of float32 those below 1.2e-38, for zero on CPUs, from before training to the end of the run: among
    them are, after some hundred steps, Adam's moments of weights that have no gradient any more, those of dead ReLUs say.

    Raises ConfigError where the processor can't (torch.set_flush_denormal).
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not torch.set_flush_denormal(True):
            raise config_error("callbacks", "flush_denormal", "this processor can't; accepted is a run without it")

    def teardown(self, *_: Any, **__: Any) -> None:
        torch.set_flush_denormal(False)
