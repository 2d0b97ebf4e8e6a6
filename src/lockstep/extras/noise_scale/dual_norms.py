"""Noise scales of steps that are a sign or an orthogonalised matrix, in dual norms (Naganuma et al. 2026, arXiv:2602.03001).

It is (N / M)^2, the batch whose noise is as large as its gradient: M is the norm of the gradient G of the expected loss, and
N / sqrt(B) bounds the expected norm of the noise of B samples. For the sign M is |G|_1, and N the sum of the standard deviations
of single samples' gradients g (Bernstein et al. 2018, arXiv:1802.04434). For an orthogonalised matrix M is G's nuclear norm and
N is tr(C^(1/2)), C = E[(g - G) (g - G)^T], from the side that has fewer rows, as in the code of the paper's authors, in which all
parameters simply add up. That they add up by the lengths of their steps is our own, and so are the estimators.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

SIGN_STEPS = {"Lion", "SignSGD", "Signum"}  # classes of these names, and those that inherit from them
_KNOWN = SIGN_STEPS | {"Muon", "SGD", "Adam", "AdamW", "NAdam", "RAdam"}  # these have a geometry that is known


class Block:
    """A parameter whose step is a sign or an orthogonalised matrix.

    second: the sum over a step's parts of samples * g^2, or of samples * g g^T, of their mean gradients g.
    """

    def __init__(self, parameter: Tensor, optimizer: Optimizer, group: Mapping[str, Any], is_spectral: bool) -> None:
        self.parameter, self.optimizer, self.group, self.is_spectral = parameter, optimizer, group, is_spectral
        self.second: Tensor | None = None

    def add(self, gradient: Tensor, factor: float) -> None:
        added = factor * self.squared(gradient)
        self.second = added if self.second is None else self.second + added

    def sum(self) -> Tensor:
        """Zeros where this process has no part."""
        return torch.zeros_like(self.squared(self.parameter.detach())) if self.second is None else self.second

    def squared(self, gradient: Tensor) -> Tensor:
        shaped = self.shaped(gradient)
        return shaped @ shaped.mT if self.is_spectral else shaped.square()

    def shaped(self, tensor: Tensor) -> Tensor:
        dense = tensor.to_dense() if tensor.is_sparse else tensor
        dense = dense.to(torch.promote_types(dense.dtype, torch.float32))
        matrix = dense.flatten(1) if self.is_spectral else dense
        return matrix.mT if self.is_spectral and matrix.shape[0] > matrix.shape[1] else matrix

    def step_length(self) -> float:
        """How far a step goes in the norm in which it is a steepest descent; of a matrix, as Muon scales it."""
        rows, columns = self.parameter.flatten(1).shape if self.is_spectral else (1, 1)
        return float(self.group["lr"]) * max(1.0, rows / columns) ** 0.5

    def earlier(self, before: Mapping[Tensor, Tensor]) -> Tensor | None:
        """The mean of the gradients before this step that the optimizer keeps, or else the last of them."""
        state = self.optimizer.state.get(self.parameter, {})
        kept = (state.get(name) for name in ("momentum_buffer", "exp_avg"))
        return next((one for one in kept if one is not None), before.get(self.parameter))

    def signal(self, gradient: Tensor, earlier: Tensor) -> Tensor:
        """Estimates M by what a step along earlier gradients gains to first order. Their noise is independent of this gradient's:
        that is expected to be at most M, and near to M where they are a good mean. |g|_1 may be hardly more than the noise's."""
        gradient, mean = self.shaped(gradient), self.shaped(earlier)
        if not self.is_spectral:
            return (gradient * mean.sign()).sum()
        values, vectors = torch.linalg.eigh(mean @ mean.mT)
        least = values[-1] * len(values) * torch.finfo(values.dtype).eps
        roots = values.where(values > least, torch.inf).rsqrt()
        return ((vectors * roots) @ vectors.mT @ mean * gradient).sum()

    def noise(self, gradient: Tensor, parts: float, samples: float) -> Tensor:
        """Estimates N. Variances are without bias; that of their roots is taken away as for normal gradients of the parts: of the
        sign exactly, of a matrix to second order and as if all entries were equally noisy."""
        variance = (self.sum() - samples * self.squared(gradient)) / (parts - 1)
        if not self.is_spectral:
            bias = math.sqrt(2 / (parts - 1)) * math.exp(math.lgamma(parts / 2) - math.lgamma((parts - 1) / 2))
            return variance.clamp(min=0).sqrt().sum() / bias
        rows, columns = self.shaped(gradient).shape
        return torch.linalg.eigvalsh(variance).clamp(min=0).sqrt().sum() / (1 - (rows + 1) / (8 * columns * (parts - 1)))


class DualNorms:
    """What a step's parts have of both norms, for the parameters that a geometry measures so; the others are left out."""

    def __init__(self, optimizers: Sequence[Optimizer], geometry: str) -> None:
        self.blocks = {
            one: Block(one, optimizer, group, kind == "spectral")
            for optimizer in optimizers
            for group in optimizer.param_groups
            for one in group["params"]
            if one.requires_grad and (kind := _kind(one, optimizer, group, geometry))
        }

    def add(self, parameter: Tensor, gradient: Tensor, factor: float) -> None:
        if (block := self.blocks.get(parameter)) is not None:
            block.add(gradient, factor)

    def sums(self) -> list[Tensor]:
        return [block.sum() for block in self.blocks.values()]

    def exchange(self, sums: list[Tensor]) -> None:
        """Adds up the processes' sums; a collective."""
        row = torch.cat([one.flatten() for one in sums])
        dist.all_reduce(row)
        rows = row.split([one.numel() for one in sums])
        for block, one, whole in zip(self.blocks.values(), sums, rows, strict=True):
            block.second = whole.view_as(one)

    def estimate(self, parts: float, samples: float, before: Mapping[Tensor, Tensor]) -> tuple[float, float]:
        """M and N, NaN where no earlier gradient is known. Only how the steps' lengths compare counts: a schedule of the rate
        changes neither."""
        largest = max(block.step_length() for block in self.blocks.values()) or 1.0
        signal = noise = 0.0
        is_known = False
        for block in self.blocks.values():
            gradient, earlier = block.parameter.grad, block.earlier(before)
            if gradient is not None and earlier is not None:
                is_known = True
                signal += float(block.signal(gradient, earlier)) * block.step_length() / largest
                noise += float(block.noise(gradient, parts, samples)) * block.step_length() / largest
        return (signal, noise) if is_known else (math.nan, math.nan)

    def kept_by_nobody(self) -> dict[Tensor, Tensor]:
        """Copies of the gradients of parameters of which the optimizer keeps no mean."""
        lacking = [one for one, block in self.blocks.items() if block.earlier({}) is None]
        return {one: one.grad.clone() for one in lacking if one.grad is not None}

    def by_number(self, gradients: Mapping[Tensor, Tensor]) -> dict[int, Tensor]:
        """Returns them by the parameters' numbers, as a checkpoint has them."""
        return {number: gradients[one] for number, one in enumerate(self.blocks) if one in gradients}

    def by_parameter(self, gradients: Mapping[int, Tensor]) -> dict[Tensor, Tensor]:
        """Returns those of a checkpoint that are of parameters here."""
        pairs = [(one, gradients[number]) for number, one in enumerate(self.blocks) if number in gradients]
        return {one: gradient.to(one) for one, gradient in pairs if gradient.shape == one.shape}


def _kind(parameter: Tensor, optimizer: Optimizer, group: Mapping[str, Any], geometry: str) -> str | None:
    """`sign`, `spectral`, or None for what is not measured by a dual norm."""
    names = _names(optimizer)
    if geometry == "optimizer":
        geometry = "sign" if names & SIGN_STEPS else "spectral" if "Muon" in names else ""
    is_matrix = parameter.ndim >= 2 and group.get("orthogonalize", True)  # false: of the optimizer beside Muon
    return geometry if geometry == "sign" or (geometry == "spectral" and is_matrix) else None


def _names(optimizer: Optimizer) -> set[str]:
    return {base.__name__ for base in type(optimizer).__mro__}


def unknown_steps(optimizers: Sequence[Optimizer]) -> list[str]:
    """Returns the classes of optimizers in the geometry of whose steps nothing can be measured."""
    return [type(one).__name__ for one in optimizers if not _names(one) & _KNOWN]
