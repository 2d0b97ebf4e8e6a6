"""Which samples a step has had, told by fingerprints of its batches: whatever process has had them, in whatever order.

Batches may be of any shape: tensors in tuples, dictionaries or dataclasses; the samples along the first axis or, where time
comes first, along the second. Which axis it is shows when the sides are compared: the one along which the batches of all
processes together are as long as the reference's.
"""

import math
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.datamodules.batches import leaves
from lockstep.parity.tensors import difference

# By the name of a tensor, for each axis that may be the batch: the shape of one sample, and a number for each, float64 (n,).
# Plain containers, which torch.load takes with weights_only.
Prints = dict[str, list[tuple[tuple[int, ...], Tensor]]]


def fingerprints(batch: Any, name: str = "batch") -> Prints:
    """Of one batch."""
    tensors = [(name, tensor) for name, tensor in leaves(batch, name) if tensor.ndim and tensor.layout == torch.strided]
    return {name: [_along(tensor, axis, k) for axis in range(min(2, tensor.ndim))] for k, (name, tensor) in enumerate(tensors)}


def _along(tensor: Tensor, axis: int, number: int) -> tuple[tuple[int, ...], Tensor]:
    tensor = tensor.detach().cpu()
    rows = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double().movedim(axis, 0)
    flat = rows.flatten(1) if rows.ndim > 1 else rows[:, None]
    return tuple(rows.shape[1:]), flat @ torch.cos(torch.arange(flat.shape[1], dtype=torch.float64) + number)


def gathered(batches: list[Prints]) -> Prints:
    """Those of all batches of all processes as of one batch; without the tensors whose samples are not of one shape."""
    everyone: list[Any] = [batches]
    if dist.is_initialized():
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, batches)
    return _joined([prints for rank in everyone for prints in rank])


def _joined(batches: list[Prints]) -> Prints:
    names = dict.fromkeys(name for prints in batches for name in prints)
    return {name: _axes([prints[name] for prints in batches if name in prints]) for name in names}


def _axes(parts: list[list[tuple[tuple[int, ...], Tensor]]]) -> list[tuple[tuple[int, ...], Tensor]]:
    """An axis along which samples have several shapes is left empty, its shape that of none."""
    joined = []
    for axis in zip(*parts, strict=True):
        shapes = {shape for shape, _ in axis}
        whole = (shapes.pop(), torch.cat([prints for _, prints in axis])) if len(shapes) == 1 else ((-1,), torch.zeros(0))
        joined.append(whole)
    return joined


def compare_samples(ours: Prints, theirs: Prints) -> tuple[float | None, set[str], bool]:
    """How far apart: zero where both have the same samples, infinite where one has more; None where nothing is comparable.
    Then the names of tensors that were not compared, and whether the other side has more samples."""
    same, left_out, is_longer = defaultdict(list), set(), []
    for name in dict.fromkeys([*ours, *theirs]):
        pairs = list(zip(ours.get(name, []), theirs.get(name, []), strict=False))
        alike = [(a, b) for (shape, a), (other, b) in pairs if shape == other != (-1,)]
        matching = next(((a, b) for a, b in alike if len(a) == len(b)), None)
        if matching is not None:
            same[len(matching[0])].append(matching)
            continue
        left_out.add(name)
        is_longer += [len(b) > len(a) for a, b in alike]
    if not same and is_longer:
        return math.inf, set(), any(is_longer)
    if not same:
        return None, left_out, False
    apart = (difference(_total([a for a, _ in pairs]), _total([b for _, b in pairs])) for pairs in same.values())
    return max(apart), left_out, False


def _total(prints: list[Tensor]) -> Tensor:
    return torch.stack(prints).sum(dim=0).sort().values
