"""Log why several processes can't give the result of one, at the start of a run, and store it in its record."""

import logging
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder
from torch import nn
from torchmetrics import Metric
from torchmetrics.aggregation import MeanMetric

from lockstep.callbacks.monitors import Monitor
from lockstep.console import join_first
from lockstep.datamodules.base import DataModule
from lockstep.datamodules.batches import samples_in
from lockstep.noise import Dropout
from lockstep.runs.results import Records
from lockstep.runs.shares import dp_rank_and_size
from lockstep.strategies.ddp import PlannedWorldSize

log = logging.getLogger(__name__)


class EquivalenceReport(Monitor, Records):
    """Log a line for each cause that is visible in the built parts, or in a step that draws random numbers. `causes` has the
    lines for the record of the run.

    Other causes in a model's code are found by `lockstep parity`, which trains.
    """

    def __init__(self) -> None:
        self.causes: list[str] = []
        self._states: tuple[bytes, bytes] | None = None  # the generators' states before a step
        self._has_samples = False  # True if a batch has several

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.causes = []
        if trainer.world_size > 1:
            for cause in find_causes(trainer, pl_module):
                self._say(cause)

    def _say(self, cause: str) -> None:
        if cause not in self.causes:
            self.causes.append(cause)
            log.info(f"Differs from one process: {cause}")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, *_: Any, **__: Any
    ) -> None:
        if batch_idx == 0 and trainer.world_size > 1:
            self._states, self._has_samples = _states(pl_module.device), (samples_in(batch) or 0) > 1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any, **__: Any
    ) -> None:
        if batch_idx == 0 and trainer.world_size > 1 and self._states != _states(pl_module.device):
            stage = "training" if trainer.training else "validation"
            fix = "use lockstep.nets.Dropout or lockstep.noise, which draw the same on any number of processes"
            self._say(f"a {stage} step draws random numbers, as torch's dropout does, that differ between processes; {fix}")

    on_validation_batch_start, on_validation_batch_end = on_train_batch_start, on_train_batch_end

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name metrics that are means over batches."""
        if trainer.world_size > 1 and self._has_samples:
            for name in metrics_of_batches(pl_module):
                self._say(f"{name} is a mean of batches' values, which other batches do not have; update it with samples' values")

    on_train_epoch_end = on_validation_epoch_end


def metrics_of_batches(model: nn.Module) -> list[str]:
    """Return the names of metrics that average over updates, not samples: torchmetrics' MeanMetric if it is given one number per
    batch, and user-defined metrics."""
    metrics = [(name, metric) for name, metric in model.named_modules() if isinstance(metric, Metric) and metric.update_count > 1]
    return [
        f"{name} ({type(metric).__name__})"
        for name, metric in metrics
        if (isinstance(metric, MeanMetric) or not type(metric).__module__.startswith("torchmetrics."))
        and any(isinstance(x, torch.Tensor) and x.ndim == 0 and x == metric.update_count for x in metric.metric_state.values())
    ]


def _states(device: torch.device) -> tuple[bytes, bytes]:
    """Return the states of torch's generators, and of numpy's and Python's, which change with every draw."""
    drawn = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return torch.cat(drawn).numpy().tobytes(), pickle.dumps((numpy.random.get_state(), random.getstate()))


def find_causes(trainer: Any, model: LightningModule) -> Iterator[str]:
    """Yield a line for each cause that the built parts show."""
    from lockstep.trainer.batchnorm import Synchronised, is_batchnorm

    layers, shares = list(model.named_modules()), dp_rank_and_size(trainer)[1]
    alone = [name for name, layer in layers if is_batchnorm(layer) and not isinstance(layer, Synchronised | nn.SyncBatchNorm)]
    if alone:
        yield f"trainer.sync_batchnorm=false: each process normalises by its own samples, in {join_first(alone)}"
    dropouts = [name for name, layer in layers if isinstance(layer, Dropout) and layer.p > 0]
    if dropouts and shares < trainer.world_size:  # a process may apply dropout to a part of a sample
        yield f"noise is drawn for parts of samples, in {join_first(dropouts)}"
    if isinstance(trainer.strategy, PlannedWorldSize) and trainer.strategy.communication is not None:
        yield f"trainer.strategy.communication={trainer.strategy.communication}: gradients are sent in fewer bits"
    data = trainer.datamodule
    if isinstance(data, DataModule) and data.global_batch_size is None and shares > 1:
        samples = data.samples_per_batch * trainer.accumulate_grad_batches
        yield (
            f"datamodule.batch_size={data.batch_size} is per process: a step has {samples} samples, and on one process "
            f"{samples // shares}; datamodule.global_batch_size sets the batch of all processes"
        )
    if any(isinstance(callback, LearningRateFinder) for callback in trainer.callbacks):
        yield "LearningRateFinder: it looks at the losses of rank zero's samples, and may find another rate"
    if "16" in str(trainer.precision):
        yield f"trainer.precision={trainer.precision}: equal but for its rounding, which training makes larger"
