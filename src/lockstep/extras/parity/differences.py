"""How far what one side had lies from what the other had: tensors, and the samples of batches.

Samples are told by fingerprints: whatever process has had them, in whatever order. Batches may be of any shape: tensors in
tuples, dictionaries or dataclasses; the samples along the first axis or, where time comes first, along the second. Which
axis it is shows when the sides are compared: the one along which the batches of all processes together are as long as the
reference's.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.datamodules.batches import leaves
from lockstep.extras.parity.sides import Difference
from lockstep.extras.sharding.shards import full_tensors

Tensors = dict[str, Tensor]
# By the name of a tensor, for each axis that may be the batch: the shape of one sample, and a number for each, float64 (n,).
# Plain containers, which torch.load takes with weights_only.
Print = tuple[tuple[int, ...], Tensor]
Prints = dict[str, list[Print]]


def copied(values: Mapping[str, Any], keep: bool = True) -> Tensors:
    """Dense copies on the CPU of those that are tensors; none where not kept. A collective for those of which each process has a
    part."""
    tensors = {name: value.detach() for name, value in full_tensors(dict(values), keep).items() if isinstance(value, Tensor)}
    if not keep:
        return {}
    return {name: (t if t.layout == torch.strided else t.to_dense()).cpu().clone() for name, t in tensors.items()}


def of_all_ranks(value: Any) -> list[Any]:
    """What each process has."""
    if not dist.is_initialized():
        return [value]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def _as_float64(tensor: Tensor) -> Tensor:
    """Of a complex one both parts, along an axis more."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


@dataclass
class Differences:
    """Collects differences, each relative to the largest |a| that this tensor has had in any step so far.

    As training converges a gradient becomes small, and what rounding leaves of it then is no difference.
    """

    found: list[Difference] = field(default_factory=list)
    _scales: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def add(
        self, step: int, quantity: str, ours: Tensors, theirs: Tensors, absent_is_zero: bool = False, by_entry: bool = False
    ) -> None:
        """Of each tensor of a quantity: max|a-b| / max|a|, or `by_entry` the largest |a-b| / |a| (see `entry_scale`). One that a
        side lacks is infinitely far, or counts as zero: as a gradient does."""
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            a, b = ours.get(name), theirs.get(name)
            if absent_is_zero:
                a, b = (torch.zeros_like(b) if a is None else a), (torch.zeros_like(a) if b is None else b)  # pyright: ignore
            tensors = [tensor for tensor in (a, b) if tensor is not None]
            value = math.inf
            if a is not None:
                scale = self._largest_so_far((quantity, name), entry_scale(a) if by_entry else magnitude(a))
                value = math.inf if b is None else difference(a, b, scale)
            size = max(magnitude(tensor).item() for tensor in tensors)
            self.found.append(Difference(step, quantity, name, value, min(map(_bits, tensors)), size))

    def _largest_so_far(self, key: tuple[str, str], scale: Tensor) -> Tensor:
        known = self._scales.get(key)
        self._scales[key] = scale if known is None or known.shape != scale.shape else torch.maximum(known, scale)
        return self._scales[key]


def _sizes(tensor: Tensor) -> Tensor:
    """Absolute values in float64; 0 in the place of what is not finite."""
    return (tensor.resolve_conj().to(torch.complex128) if tensor.is_complex() else tensor.double()).abs().nan_to_num(0, 0, 0)


def magnitude(tensor: Tensor) -> Tensor:
    """The largest absolute value, float64 (); 0 where there is none, or none that is finite."""
    sizes = _sizes(tensor).flatten()
    return torch.cat([sizes, sizes.new_zeros(1)]).max()


def entry_scale(tensor: Tensor) -> Tensor:
    """What each entry's difference is measured by: its absolute value, or the median of those that are not zero, the larger. So
    a large entry hides nothing in the others, and one that is nearly zero by chance does not make a difference large."""
    sizes = _sizes(tensor)
    known = sizes[sizes > 0]
    return sizes.clamp(min=known.median().item()) if known.numel() else sizes


def difference(a: Tensor, b: Tensor, scale: Tensor | None = None) -> float:
    """The largest |a-b| / scale, which is max|a| where none is given; 0 where both are zero or empty, infinite where a alone
    is, where shapes or NaNs differ, or integers."""
    if a.shape != b.shape:
        return math.inf
    dtype = torch.promote_types(a.dtype, b.dtype)  # complex if one is
    wide = torch.complex128 if dtype.is_complex else torch.float64
    x, y = a.to(wide), b.to(wide)
    same = x.isclose(y, rtol=0, atol=0, equal_nan=True)
    if same.all():
        return 0.0
    if not (dtype.is_floating_point or dtype.is_complex):
        return math.inf  # what is counted is the same or not
    ratios = ((x - y).abs() / (magnitude(a) if scale is None else scale)).masked_fill(same, 0.0)
    return ratios.nan_to_num(math.inf, math.inf).max().item()


def _bits(tensor: Tensor) -> int:
    """Of a real number as this tensor holds it; 64 where it holds integers."""
    return torch.finfo(tensor.dtype).bits if tensor.is_floating_point() or tensor.is_complex() else 64


def fingerprints(batch: Any, name: str = "batch") -> Prints:
    """Of one batch."""
    tensors = [(name, tensor) for name, tensor in leaves(batch, name) if tensor.ndim and tensor.layout == torch.strided]
    return {name: [_along(tensor, axis, k) for axis in range(min(2, tensor.ndim))] for k, (name, tensor) in enumerate(tensors)}


def _along(tensor: Tensor, axis: int, number: int) -> Print:
    rows = _as_float64(tensor.detach().cpu()).movedim(axis, 0)
    flat = rows.flatten(1) if rows.ndim > 1 else rows[:, None]
    return tuple(rows.shape[1:]), flat @ torch.cos(torch.arange(flat.shape[1], dtype=torch.float64) + number)


def gathered(batches: list[Prints], share: int) -> Prints:
    """Those of all batches of all processes as of one batch, but once of those that take the same share of it."""
    shares = dict(of_all_ranks((share, batches)))
    everyone = [prints for rank in shares.values() for prints in rank]
    names = dict.fromkeys(name for prints in everyone for name in prints)
    return {name: [_joined(axis) for axis in zip(*(p[name] for p in everyone if name in p), strict=True)] for name in names}


def _joined(parts: Sequence[Print]) -> Print:
    """Left empty, with the shape of none, where samples have several shapes."""
    shapes = {shape for shape, _ in parts}
    return (shapes.pop(), torch.cat([prints for _, prints in parts])) if len(shapes) == 1 else ((-1,), torch.zeros(0))


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
    if not same:
        return (math.inf, set(), any(is_longer)) if is_longer else (None, left_out, False)
    totals = ([torch.stack(prints).sum(dim=0).sort().values for prints in zip(*pairs, strict=True)] for pairs in same.values())
    return max(difference(a, b) for a, b in totals), left_out, False
