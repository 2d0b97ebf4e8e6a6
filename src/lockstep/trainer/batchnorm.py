"""BatchNorm over the global batch, on GPUs and on CPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules._functions import SyncBatchNorm as TorchSyncBatchNorm  # torch.nn.SyncBatchNorm computes with it
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from lockstep.runs.shares import EqualBuffers


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
    Synchronised.has_dummies = True
    try:
        yield
    finally:
        Synchronised.has_dummies = False


class Synchronised(EqualBuffers):
    """Base class before a BatchNorm layer's own; see `synchronise_batchnorm`."""

    has_dummies: ClassVar[bool] = False  # see `without_statistics`

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
    """torch.nn.functional.batch_norm with the statistics of all processes' samples in place of its batch's.

    GPUs use torch's kernels. On CPUs, where it has none, round as the layer does on one process: statistics in float64, in two
    passes so that nothing cancels, then one scale and one shift a channel in the input's type. A ReLU turns another rounding of
    a value near zero into another gradient.
    """
    if not training:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    is_dummy = Synchronised.has_dummies
    own = input[:0] if is_dummy else input  # an empty batch, and its gradient, pass the same collectives as others' samples
    x = own.float() if own.dtype in (torch.bfloat16, torch.float16) else own
    if input.is_cuda:
        own = own if len(own) else x  # torch sends statistics of the input's type for an empty batch, else float32
        world = dist.group.WORLD, dist.get_world_size()
        y = TorchSyncBatchNorm.apply(own, weight, bias, running_mean, running_var, eps, momentum, *world)
    else:
        mean, variance, count = _statistics(x.detach())
        if count == 1:  # as torch does on one process
            raise ValueError(f"Expected more than 1 value per channel when training, over all processes; here {tuple(x.shape)}")
        if running_mean is not None and running_var is not None:  # as torch, with the unbiased variance
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * count / max(1.0, count - 1)).to(running_var.dtype), momentum)
        inverse = (variance.to(x.dtype).double() + eps).rsqrt()
        y = _Normalise.apply(x, weight, bias, mean.to(x.dtype), inverse.to(x.dtype), count)
    return input * 0 + y.sum().to(input.dtype) if is_dummy else y.to(input.dtype)


class _Normalise(torch.autograd.Function):
    """Normalise (n, channels, ...) by each channel's mean and inverse deviation over all processes, which have `count` values."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse: Tensor, count: float
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.count = count
        scale = inverse if weight is None else inverse * weight
        shift = -mean.double() * scale.double() + (0.0 if bias is None else bias)
        return torch.addcmul(_by_channel(shift.to(x.dtype), x), x, _by_channel(scale, x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients. Sums are over all processes: each one's loss depends, by the statistics, on every sample."""
        x, weight, mean, inverse = ctx.saved_tensors
        own = [torch.zeros_like(mean), torch.zeros_like(mean)]
        if len(x):  # the kernel divides by the number of values
            statistics = None, None, mean, inverse, True, 0.0
            own = torch.ops.aten.native_batch_norm_backward(gradient, x, None, *statistics, [False, True, True])[1:]
        parameter_gradients = own if weight is not None else (None, None)
        if not ctx.needs_input_grad[0]:
            return None, *parameter_gradients, None, None, None
        along, total = _gather(torch.stack([*own]).double()).sum(0) / ctx.count
        scale = inverse.double() if weight is None else inverse.double() * weight
        slope, shift, scale = (t.to(x.dtype) for t in (-along * inverse * scale, -total * scale, scale))
        x_gradient = x.sub(_by_channel(mean, x)).mul_(_by_channel(slope, x)).add_(_by_channel(shift, x))
        x_gradient.addcmul_(gradient, _by_channel(scale, x))
        return x_gradient, *parameter_gradients, None, None, None


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return mean and biased variance of each channel of (n, channels, ...) over all processes, and its number of values, from
    each process's own (Chan, Golub, LeVeque 1983)."""
    values = [dimension for dimension in range(x.ndim) if dimension != 1]
    own_count = x.numel() // x.shape[1]
    wide = x.to(torch.float64, copy=True)
    own_mean = wide.sum(values) / max(1, own_count)
    own_squares = wide.sub_(_by_channel(own_mean, x)).square_().sum(values)
    means, squares, counts = _gather(torch.stack((own_mean, own_squares, torch.full_like(own_mean, own_count)))).unbind(1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    variance = (squares + counts * (means - mean).square()).sum(0) / count
    return mean, variance, float(count[0])


def _gather(own: Tensor) -> Tensor:
    """Gather (...) of all processes into (world size, ...): on CPUs an exchange takes about a millisecond, whatever its size."""
    gathered = own.new_empty(dist.get_world_size(), *own.shape)
    dist.all_gather_into_tensor(gathered.view(-1), own.view(-1))
    return gathered


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view([1, -1] + [1] * (x.ndim - 2))
