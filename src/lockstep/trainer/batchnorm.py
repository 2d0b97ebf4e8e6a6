"""BatchNorm over the global batch, on GPUs and on CPUs."""

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins import TorchSyncBatchNorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SyncBatchNorm(TorchSyncBatchNorm):
    """Lightning's seam for synchronised BatchNorm: torch's on GPUs, AllReduceBatchNorm on CPUs, where torch has none."""

    def __init__(self, accelerator: str) -> None:
        self.on_cpu = accelerator != "gpu"

    def apply(self, model: nn.Module) -> nn.Module:
        return _replace(model) if self.on_cpu else super().apply(model)

    def revert(self, model: nn.Module) -> nn.Module:
        return _restore(model) if self.on_cpu else super().revert(model)


class AllReduceBatchNorm(_BatchNorm):
    """A BatchNorm layer whose training statistics are those of the global batch.

    Ranks may hold unequal numbers of samples, none included. It rounds where the single-process layer does: statistics in
    float64, in two passes so that nothing cancels, then one scale and one shift a channel in the input's type. A ReLU turns
    another rounding of a value near zero into another gradient.
    """

    def __init__(self, layer: _BatchNorm) -> None:
        """Shares the parameters and buffers of `layer`."""
        super().__init__(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        self.replaced = (layer,)  # in a tuple: not a submodule, or the keys of the checkpoint would change
        _share_state(layer, self)
        self.train(layer.training)

    def restored(self) -> _BatchNorm:
        """The layer it was made from, with the statistics it has now."""
        _share_state(self, self.replaced[0])
        return self.replaced[0].train(self.training)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"BatchNorm needs (n, channels, ...), got {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        x = input.float() if input.dtype in (torch.bfloat16, torch.float16) else input
        dimensions = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        local_count = x.new_full((1,), x.numel() // x.shape[1], dtype=torch.float64)
        totals = _AllReduce.apply(torch.cat([x.sum(dimensions, dtype=torch.float64), local_count]))
        count = totals[-1].detach()
        mean = totals[:-1] / count
        variance = _AllReduce.apply((x - mean.view(shape)).square().sum(dimensions)) / count
        self._update(mean.detach(), variance.detach(), count)
        scale = (variance.to(x.dtype).double() + self.eps).rsqrt().to(x.dtype)
        if self.affine:
            scale = scale * self.weight
        shift = -mean.to(x.dtype).double() * scale.double()
        if self.affine:
            shift = shift + self.bias
        return torch.addcmul(shift.to(x.dtype).view(shape), x, scale.view(shape)).to(input.dtype)

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Running statistics as torch.nn.BatchNorm keeps them: unbiased variance; momentum None is the mean of all."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


def _share_state(source: _BatchNorm, target: _BatchNorm) -> None:
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        setattr(target, name, getattr(source, name))


class _AllReduce(torch.autograd.Function):
    """The sum over ranks. Its gradient is the sum too: every rank's loss depends on every rank's term."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def _replace(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return AllReduceBatchNorm(module)
    for name, child in module.named_children():
        module.add_module(name, _replace(child))
    return module


def _restore(module: nn.Module) -> nn.Module:
    if isinstance(module, AllReduceBatchNorm):
        return module.restored()
    for name, child in module.named_children():
        module.add_module(name, _restore(child))
    return module
