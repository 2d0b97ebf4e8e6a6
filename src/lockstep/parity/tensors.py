"""How far the tensors of one side lie from those of the other."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lockstep.parity.sides import Difference

Tensors = dict[str, Tensor]


def copied(values: Mapping[str, Any]) -> Tensors:
    """Dense copies on the CPU of those that are tensors."""
    return {name: _dense(value.detach()).cpu().clone() for name, value in values.items() if isinstance(value, Tensor)}


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


@dataclass
class Differences:
    """Collects differences, each as max|a-b| over the largest |a| that this tensor has had in any step so far.

    As training converges a gradient becomes small, and what rounding leaves of it then is no difference.
    """

    found: list[Difference] = field(default_factory=list)
    _largest: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, step: int, quantity: str, ours: Tensors, theirs: Tensors, absent_is_zero: bool = False) -> None:
        """Of each tensor of a quantity. One that a side lacks is infinitely far, or counts as zero: as a gradient does."""
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            a, b = ours.get(name), theirs.get(name)
            if absent_is_zero:
                a, b = (torch.zeros_like(b) if a is None else a), (torch.zeros_like(a) if b is None else b)  # pyright: ignore
            largest = max(self._largest.get((quantity, name), 0.0), 0.0 if a is None else magnitude(a))
            self._largest[quantity, name] = largest
            value = math.inf if a is None or b is None else difference(a, b, largest)
            bits = min(_bits(tensor) for tensor in (a, b) if tensor is not None)
            self.found.append(Difference(step, quantity, name, value, bits))


def magnitude(tensor: Tensor) -> float:
    """The largest absolute value; 0 where there is none, or none that is finite."""
    values = _as_float64(tensor).abs()
    values = values[values.isfinite()]
    return values.max().item() if values.numel() else 0.0


def difference(a: Tensor, b: Tensor, largest: float | None = None) -> float:
    """max|a-b| over `largest`, or max|a|; 0 where both are zero or empty, infinite where a alone is, where
    shapes or NaNs differ, or integers."""
    if a.shape != b.shape:
        return math.inf
    if not a.is_complex() and b.is_complex():
        a = a.to(b.dtype)
    x, y = _as_float64(a), _as_float64(b.to(a.dtype) if a.is_complex() else b)
    if torch.allclose(x, y, rtol=0, atol=0, equal_nan=True):
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return math.inf  # what is counted is the same or not
    distance, scale = (x - y).abs().max().item(), magnitude(a) if largest is None else largest
    return distance / scale if scale > 0 and math.isfinite(distance) else math.inf


def _as_float64(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _bits(tensor: Tensor) -> int:
    """Of a real number as this tensor holds it; 64 where it holds integers."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 64
    return tensor.dtype.itemsize * (4 if tensor.is_complex() else 8)
