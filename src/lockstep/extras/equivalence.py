"""Causes that keep several processes from giving the result of one, logged at the start of a run and kept in its record."""

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder
from torch import nn

from lockstep.console import join_first
from lockstep.datamodules.base import DataModule
from lockstep.datamodules.seeded import generator_states
from lockstep.extras.monitor import Monitor
from lockstep.nets.dropout import Dropout
from lockstep.runs.shares import dp_rank_and_size

log = logging.getLogger(__name__)


class EquivalenceReport(Monitor, Callback):
    """Log a line for each cause that can be seen from the built parts, or from a step that draws random numbers; `causes` has
    them for the record of the run.

    It does not see what else the code of a model does: scripts/parity.py finds that by training.
    """

    def __init__(self) -> None:
        self.causes: list[str] = []
        self._states: tuple[bytes, bytes] | None = None  # the generators' states before a step

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.causes = []
        for cause in find_causes(trainer, pl_module) if trainer.world_size > 1 else ():
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
        if batch_idx == 0 and trainer.world_size > 1 and self._states != _states(module.device):
            alike = "lockstep.nets.Dropout and lockstep.noise draw them alike on any number of processes"
            self._say(f"random numbers are drawn in a {stage} step, by each process its own; {alike}")


def _states(device: torch.device) -> tuple[bytes, bytes]:
    """Return the states of torch's generators, and of numpy's and Python's: another value after something has been drawn."""
    of_torch, *others = generator_states()
    drawn = [of_torch, *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return torch.cat(drawn).numpy().tobytes(), pickle.dumps(others)


def find_causes(trainer: Any, model: LightningModule) -> Iterator[str]:
    """Yield a line for each cause that the built parts show."""
    from lockstep.trainer.batchnorm import Synchronised, is_batchnorm

    layers, shares = list(model.named_modules()), dp_rank_and_size(trainer)[1]
    alone = [name for name, layer in layers if is_batchnorm(layer) and not isinstance(layer, Synchronised | nn.SyncBatchNorm)]
    if alone:
        yield f"trainer.sync_batchnorm=false: each process normalises by its own samples, in {join_first(alone)}"
    dropouts = [name for name, layer in layers if isinstance(layer, Dropout) and layer.p > 0]
    if dropouts and shares < trainer.world_size:  # a process may drop from a part of a sample
        yield f"noise is drawn for parts of samples, in {join_first(dropouts)}"
    if (communication := getattr(trainer.strategy, "communication", None)) is not None:
        yield f"trainer.strategy.communication.hook={communication['hook']}: gradients are sent in fewer bits"
    data: Any = getattr(trainer, "datamodule", None)
    if isinstance(data, DataModule) and data.global_batch_size is None and shares > 1:
        samples = data.order_facts()["global_batch_size"]
        yield (
            f"datamodule.batch_size={data.batch_size} is per process: a step has {samples} samples, and on one process "
            f"{samples // shares}; datamodule.global_batch_size sets the batch of all processes"
        )
    if any(isinstance(callback, LearningRateFinder) for callback in trainer.callbacks):
        yield "LearningRateFinder: it looks at the losses of rank zero's samples, and may find another rate"
    if "16" in str(trainer.precision):
        yield f"trainer.precision={trainer.precision}: equal but for its rounding, which training makes larger"
