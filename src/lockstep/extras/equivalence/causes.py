"""Causes, in a model and its data, that keep several processes from giving the result of one."""

from collections.abc import Iterator
from typing import Any

from lightning import LightningModule
from lightning.pytorch.callbacks import LearningRateFinder
from torch import nn

from lockstep.callbacks.randomness import CounterBasedRandomness
from lockstep.console import join_first
from lockstep.datamodules.base import DataModule
from lockstep.extras.equivalence.own_batchnorm import takes_own_statistics
from lockstep.nets.dropout import Dropout
from lockstep.runs.shares import dp_rank_and_size
from lockstep.trainer.batchnorm import Synchronised, is_batchnorm

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# Layers of other libraries that drop whole paths or blocks, by class name, and where they keep the probability.
_DROPPING = ("StochasticDepth", "DropPath", "DropBlock", "DropBlock2d", "DropBlock3d", "PatchDropout")
_PROBABILITIES = ("p", "drop_prob", "prob")


def find_causes(trainer: Any, model: LightningModule) -> Iterator[str]:
    """Yield a line for each."""
    yield from _norms_with_own_statistics(model)
    yield from _noise_of_each_process(trainer, model)
    if (communication := getattr(trainer.strategy, "communication", None)) is not None:
        yield f"trainer.strategy.communication.hook={communication['hook']}: gradients are sent in fewer bits"
    yield from _batches_of_each_process(trainer, getattr(trainer, "datamodule", None))
    if any(isinstance(callback, LearningRateFinder) for callback in trainer.callbacks):
        yield "LearningRateFinder: it looks at the losses of rank zero's samples, and may find another rate"
    if "16" in str(trainer.precision):
        yield f"trainer.precision={trainer.precision}: equal but for its rounding, which training makes larger"


def _norms_with_own_statistics(model: nn.Module) -> Iterator[str]:
    shared = Synchronised | nn.SyncBatchNorm
    alone = [name for name, layer in model.named_modules() if is_batchnorm(layer) and not isinstance(layer, shared)]
    if alone:
        yield f"trainer.sync_batchnorm=false: each process normalises by its own samples, in {join_first(alone)}"
    synchronised = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, shared)]
    own = [f"{name} ({type(layer).__name__})" for name, layer in synchronised if takes_own_statistics(layer)]
    if own:
        yield f"BatchNorm by a forward of its own, which is not synchronised: each process's own samples, in {join_first(own)}"


def _noise_of_each_process(trainer: Any, model: nn.Module) -> Iterator[str]:
    is_whole = dp_rank_and_size(trainer)[1] == trainer.world_size  # else a process may drop from a part of a sample
    is_counted = is_whole and any(isinstance(callback, CounterBasedRandomness) for callback in trainer.callbacks)
    drawing = [
        f"{name} ({type(layer).__name__})"
        for name, layer in model.named_modules()
        if _draws(layer) and not (isinstance(layer, Dropout) and is_counted)
    ]
    if drawing:
        yield f"noise drawn by each process (lockstep.nets.Dropout derives it from the sample): {join_first(drawing)}"


def _draws(layer: nn.Module) -> bool:
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout > 0
    if isinstance(layer, _DROPOUTS) or type(layer).__name__ in _DROPPING:
        return any((getattr(layer, name, None) or 0.0) > 0 for name in _PROBABILITIES)
    return isinstance(layer, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)


def _batches_of_each_process(trainer: Any, datamodule: Any) -> Iterator[str]:
    shares = dp_rank_and_size(trainer)[1]  # fewer than processes, where some have parts of one layer
    if isinstance(datamodule, DataModule) and datamodule.global_batch_size is None and shares > 1:
        order = datamodule.order_facts()
        yield (
            f"datamodule.batch_size={datamodule.batch_size} is per process: a step has {order['global_batch_size']} samples, and "
            f"on one process {order['global_batch_size'] // shares}; datamodule.global_batch_size sets the batch of all processes"
        )
