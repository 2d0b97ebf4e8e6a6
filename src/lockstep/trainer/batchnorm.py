"""BatchNorm over the global batch, on GPUs and on CPUs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules._functions import SyncBatchNorm as TorchSyncBatchNorm  # torch.nn.SyncBatchNorm computes with it
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from lockstep.runs.shares import EqualBuffers

_without_statistics: ContextVar[bool] = ContextVar("_without_statistics", default=False)


def is_batchnorm(layer: nn.Module) -> bool:
    """Return whether a layer is one of torch's BatchNorm layers or of a subclass: these can be synchronised."""
    return isinstance(layer, _BatchNorm)


def synchronise_batchnorm(model: nn.Module) -> None:
    """Make each BatchNorm layer of the model normalise by the statistics of all processes' samples.

    A layer keeps its class as a base, with what a subclass adds, such as an activation: only torch.nn.functional.batch_norm,
    which it calls, is computed over all processes. Without a process group nothing changes.
    """
    for layer in model.modules():  # each once, under however many names
        if is_batchnorm(layer) and not isinstance(layer, Synchronised):
            # torch's own layer refuses CPUs
            layer.__class__ = _synchronised(_AnyShape if type(layer) is nn.SyncBatchNorm else type(layer))


@contextmanager
def without_statistics() -> Iterator[None]:
    """Add nothing to the statistics of synchronised layers in this block: the inputs are dummies, in a process that has no sample
    and has to take part in the collectives of the others. The layers' outputs are zeros."""
    token = _without_statistics.set(True)
    try:
        yield
    finally:
        _without_statistics.reset(token)


class Synchronised(EqualBuffers):
    """Base class before a BatchNorm layer's own; see `synchronise_batchnorm`."""

    @property
    def equal_buffers(self) -> tuple[str, ...]:
        """Buffers that lockstep.strategies.ddp need not send; none of a class that may compute statistics in its own way."""
        is_torchs = getattr(super().forward, "__func__", None) is _BatchNorm.forward  # pyright: ignore[reportAttributeAccessIssue]
        return ("running_mean", "running_var", "num_batches_tracked") if is_torchs else ()

    @torch.compiler.disable  # collectives stay out of compiled graphs
    def forward(self, *inputs: Any, **named: Any) -> Any:
        own: Any = super()
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return own.forward(*inputs, **named)
        with OverAllProcesses():
            return own.forward(*inputs, **named)


@cache
def _synchronised(kind: type[nn.Module]) -> Any:
    return type(kind.__name__, (Synchronised, kind), {"__module__": kind.__module__})


class _AnyShape(_BatchNorm):
    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"BatchNorm needs (n, channels, ...), got {tuple(input.shape)}")


class OverAllProcesses(TorchFunctionMode):
    """Make torch.nn.functional.batch_norm normalise by the statistics of all processes' samples within the block."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return (_batch_norm if func is functional.batch_norm else func)(*args, **(kwargs or {}))


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.batch_norm with the statistics of all processes' samples in place of its batch's."""
    if not training:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    is_dummy = _without_statistics.get()
    own = input[:0] if is_dummy else input  # an empty batch, and its gradient, pass the same collectives as others' samples
    x = own.float() if own.dtype in (torch.bfloat16, torch.float16) else own
    if input.is_cuda:
        own = own if len(own) else x  # torch sends statistics of the input's type for an empty batch, else float32
        world = dist.group.WORLD, dist.get_world_size()
        y = TorchSyncBatchNorm.apply(own, weight, bias, running_mean, running_var, eps, momentum, *world)
    else:
        mean, variance, count = _statistics(x)
        if running_mean is not None and running_var is not None:  # as torch, with the unbiased variance
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * count / (count - 1).clamp(min=1)).to(running_var.dtype), momentum)
        y = _Normalise.apply(x, mean.to(x.dtype), variance.to(x.dtype), count, weight, bias, eps)
    return input * 0 + y.sum().to(input.dtype) if is_dummy else y.to(input.dtype)


@torch.no_grad()
def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and biased variance of each channel of (n, channels, ...) over all processes, and the number of values, in
    float64. Raise ValueError if it is one, as torch does on one process."""
    values = [dimension for dimension in range(x.ndim) if dimension != 1]
    precise = x.double()
    own = precise.sum(values), precise.square().sum(values), precise.new_full(x.shape[1:2], x.numel() // x.shape[1])
    total, squares, count = _sum_over_processes(own)
    if count[0] == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, over all processes; here {tuple(x.shape)}")
    mean = total / count
    return mean, (squares / count - mean.square()).clamp(min=0), count


def _sum_over_processes(own: Sequence[Tensor]) -> Tensor:
    """Return the sums of several tensors by one exchange: on CPUs each takes about a millisecond, whatever its size."""
    total = torch.stack([*own]).double()
    dist.all_reduce(total)
    return total


class _Normalise(torch.autograd.Function):
    """Normalise (n, channels, ...) by given statistics of all processes' values, with torch's kernels for evaluation, and let the
    gradient pass through the statistics."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, mean: Tensor, variance: Tensor, count: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, mean, variance, count, weight)
        ctx.eps = eps
        return functional.batch_norm(x, mean, variance, weight, bias, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Sum over all processes: each one's loss depends, by the statistics, on every sample."""
        x, mean, variance, count, weight = ctx.saved_tensors
        if len(x):
            of_evaluation = None, None, False, ctx.eps, [True, True, True]
            x_gradient, *own = torch.ops.aten.native_batch_norm_backward(gradient, x, weight, mean, variance, *of_evaluation)
        else:  # the kernel divides by the number of values
            x_gradient, own = torch.zeros_like(x), [torch.zeros_like(mean)] * 2
        along, total = (_sum_over_processes(own) / count).to(x.dtype)
        inverse = (variance + ctx.eps).rsqrt()
        scale = inverse if weight is None else inverse * weight
        x_gradient.addcmul_(x - _by_channel(mean, x), _by_channel(-along * inverse * scale, x)).sub_(
            _by_channel(total * scale, x)
        )
        return x_gradient, None, None, None, *((None, None) if weight is None else own), None


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view([1, -1] + [1] * (x.ndim - 2))
