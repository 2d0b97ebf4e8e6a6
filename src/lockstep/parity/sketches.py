"""Sketches of tensors and of batches in plain containers, and the distance of two of them."""

import math
import zlib
from typing import Any

import torch
from torch import Tensor

from lockstep.datamodules.batches import leaves

Sketch = dict[str, Any]
Sums = dict[tuple[str, int], list[float]]
_ENTRIES = 1024  # of a tensor that are stored


def sketch(tensor: Tensor) -> Sketch:
    """Return the shape, the bits of a number (0 for integers), entries at equal distances, the largest absolute value and the
    norm in float64, and a checksum of all bytes."""
    flat = tensor.detach().to_dense().cpu().contiguous().flatten()
    real = _real(flat).flatten()
    finite = real.nan_to_num(0, 0, 0)
    return {
        "shape": [*tensor.shape],
        "bits": torch.finfo(tensor.dtype).bits if tensor.is_floating_point() or tensor.is_complex() else 0,
        "entries": real[:: max(1, len(real) // _ENTRIES) | 1].clone(),  # an odd stride meets every column of a matrix
        "largest": finite.abs().max().item() if len(real) else 0.0,
        "norm": finite.norm().item(),
        "checksum": zlib.crc32(flat.view(torch.uint8).numpy().data),
    }


def _real(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def difference(a: Sketch | None, b: Sketch | None, by_entry: bool = False, largest: float = 0.0, norm: float = 0.0) -> float:
    """Return max|a-b| / max|a|, 0.0 only if all bytes are the same; infinite if a side lacks the tensor, or if shapes, integers
    or NaNs differ.

    Args:
        by_entry: measure by |a| of the same entry, or by the median of those that are not zero, the larger: a large entry then
            hides nothing in the others.
        largest, norm: of the tensor so far: what rounding leaves of a gradient that has become small is no difference.
    """
    if a is None or b is None or a["shape"] != b["shape"]:
        return math.inf
    if a["checksum"] == b["checksum"] and a["bits"] == b["bits"]:
        return 0.0
    if not a["bits"] or not b["bits"]:
        return math.inf
    x, y = a["entries"], b["entries"]
    sizes = x.abs().nan_to_num(0, 0, 0)
    positive = sizes[sizes > 0]
    scale = sizes.clamp(min=positive.median().item() if len(positive) else 0.0) if by_entry else max(a["largest"], largest)
    entries = ((x - y).abs() / scale).masked_fill(x.isclose(y, rtol=0, atol=0, equal_nan=True), 0.0)
    norms = abs(a["norm"] - b["norm"]) / (max(a["norm"], norm) or math.ulp(0.0))
    return max(entries.nan_to_num(math.inf, math.inf).max().item(), norms, math.ulp(0.0))


def sums_of(batch: Any) -> Sums:
    """Return sums of each tensor of a batch that do not depend on the parts and the order in which its samples come: by its name
    and the width of its last axis, its entries, and their sum and that of their squares, weighted by the place in that axis."""
    sums: Sums = {}
    for name, leaf in leaves(batch):
        if leaf.ndim and leaf.numel() and leaf.layout == torch.strided:
            width = leaf.shape[-1] if leaf.ndim > 1 else 1
            rows, weights = _real(leaf.detach()).cpu().nan_to_num(0, 0, 0).reshape(-1, width), 1 + torch.arange(width) / width
            sums[name, width] = [float(rows.numel()), *((each * weights).sum().item() for each in (rows, rows.square()))]
    return sums


def add_sums(parts: list[Sums]) -> dict[str, Sketch]:
    """Return sketches of the sums over several batches, less the tensors whose samples have several widths, as padded ones."""
    keys = dict.fromkeys(key for part in parts for key in part)
    of_one_width = [key for key in keys if [name for name, _ in keys].count(key[0]) == 1]
    rows = {key: torch.tensor([part[key] for part in parts if key in part], dtype=torch.float64) for key in of_one_width}
    return {f"{name}, {width} wide": sketch(numbers.sum(dim=0)) for (name, width), numbers in rows.items()}
