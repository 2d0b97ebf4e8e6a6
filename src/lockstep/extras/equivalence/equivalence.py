"""Report of the causes that keep several processes from giving the result of one, made when training starts."""

import logging
import pickle
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lockstep.datamodules.seeded import generator_states
from lockstep.extras.monitor import Monitor

log = logging.getLogger(__name__)


class EquivalenceReport(Monitor, Callback):
    """Log a line for each cause that can be seen from the built parts, or from a step that draws random numbers; `causes` has
    them for the record of the run.

    It does not see what else the code of a model does: lockstep parity finds that by training.
    """

    def __init__(self) -> None:
        self.causes: list[str] = []
        self._states: tuple[bytes, bytes] | None = None  # the generators' states before a step

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.causes = []
        if trainer.world_size > 1:
            from lockstep.extras.equivalence.causes import find_causes

            for cause in find_causes(trainer, pl_module):
                self._say(cause)

    def _say(self, cause: str) -> None:
        if cause not in self.causes:
            self.causes.append(cause)
            log.info(f"Not as on one process: {cause}")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._look_before(trainer, pl_module, batch_idx)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._look_after(trainer, pl_module, batch_idx, "training")

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._look_before(trainer, pl_module, batch_idx)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._look_after(trainer, pl_module, batch_idx, "validation")

    def _look_before(self, trainer: Trainer, module: LightningModule, batch_idx: int) -> None:
        if batch_idx == 0 and trainer.world_size > 1:
            self._states = _states(module.device)

    def _look_after(self, trainer: Trainer, module: LightningModule, batch_idx: int, stage: str) -> None:
        if batch_idx or trainer.world_size == 1 or self._states == _states(module.device):
            return
        if not any("lockstep.nets.Dropout" in cause for cause in self.causes):  # layers that draw are named already
            alike = "lockstep.noise draws them alike on any number of processes"
            self._say(f"random numbers are drawn in a {stage} step, by each process its own; {alike}")


def _states(device: torch.device) -> tuple[bytes, bytes]:
    """Return the states of torch's generators, and of numpy's and Python's: another value after something has been drawn."""
    of_torch, *others = generator_states()
    drawn = [of_torch, *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return torch.cat(drawn).numpy().tobytes(), pickle.dumps(others)
