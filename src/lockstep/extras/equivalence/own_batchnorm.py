"""BatchNorm layers that normalise without torch.nn.functional.batch_norm, and calls of it from other layers: neither is
synchronised."""

import copy
from contextlib import suppress
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lockstep.trainer.batchnorm import Synchronised

_DIMENSIONS = {nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}  # dimensions of a sample, beside its channels


def takes_own_statistics(layer: nn.Module) -> bool:
    """Return whether a BatchNorm layer normalises by a `forward` of its own, without torch.nn.functional.batch_norm. A copy of
    the layer is tried on a batch of ones; if that fails it is not known, and False is returned."""
    calls = BatchNormCalls()
    with suppress(Exception), torch.no_grad(), calls:
        if _own_forward(layer).__func__ in (nn.BatchNorm2d.forward, nn.SyncBatchNorm.forward):  # a lazy one has no copy yet
            return False
        tried: Any = copy.deepcopy(layer).train()
        dimensions = next((number for kind, number in _DIMENSIONS.items() if isinstance(layer, kind)), 0)
        like = next(iter([*tried.parameters(), *tried.buffers()]), torch.empty(0))
        _own_forward(tried)(like.new_ones(2, tried.num_features, *[2] * dimensions))
        return not calls.seen
    return False


def _own_forward(layer: Any) -> Any:
    return super(Synchronised, layer).forward if isinstance(layer, Synchronised) else layer.forward  # pyright: ignore


class BatchNormCalls(TorchFunctionMode):
    """Record in `seen` whether torch.nn.functional.batch_norm is called in training, except by synchronised layers."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is functional.batch_norm:
            self.seen |= bool(signature(func).bind(*args, **(kwargs or {})).arguments.get("training", False))
        return func(*args, **(kwargs or {}))
