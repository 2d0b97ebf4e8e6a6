"""How far what one side had lies from what the other had: tensors, and the samples of batches.

Samples are known by their fingerprints: whatever process has had them, in whatever order. Batches may be of any shape: tensors
in tuples, dictionaries or dataclasses; the samples along the first axis or, where time comes first, along the second. Which
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

from lockstep.extras.any_batch.any_batch import leaves
from lockstep.extras.parity.sides import Difference
from lockstep.extras.sharding.shards import full_tensors

Tensors = dict[str, Tensor]
# By the name of a tensor, for each axis that may be the batch: the shape of one sample, and a number for each, float64 (n,).
# Plain containers, which torch.load takes with weights_only.
Axis = tuple[tuple[int, ...], Tensor]
Fingerprints = dict[str, list[Axis]]


def copy_tensors(values: Mapping[str, Any], keep: bool = True) -> Tensors:
    """Returns dense copies on the CPU of those that are tensors; none if they are not to be kept. A collective for those that
    are sharded."""
    tensors = {name: value.detach() for name, value in full_tensors(dict(values), keep).items() if isinstance(value, Tensor)}
    if not keep:
        return {}
    return {name: (t if t.layout == torch.strided else t.to_dense()).cpu().clone() for name, t in tensors.items()}


def all_ranks(value: Any) -> list[Any]:
    """Returns what each process has."""
    if not dist.is_initialized():
        return [value]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


@dataclass
class Differences:
    """Collects differences, each relative to the largest |a| that this tensor has had in any step so far.

    As training converges a gradient becomes small, and what rounding leaves of it then is no difference.
    """

    all: list[Difference] = field(default_factory=list)
    _scales: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def add(
        self, step: int, quantity: str, reference: Tensors, other: Tensors, absent_is_zero: bool = False, by_entry: bool = False
    ) -> None:
        """Adds for each tensor of a quantity max|a-b| / max|a|, or `by_entry` the largest |a-b| / |a| (see `entry_scale`). One
        that a side lacks is infinitely far, or counts as zero: as a gradient does."""
        for name in dict.fromkeys([*reference, *other]):
            a, b = reference.get(name), other.get(name)
            if absent_is_zero:
                a, b = (torch.zeros_like(b) if a is None else a), (torch.zeros_like(a) if b is None else b)  # pyright: ignore
            tensors = [tensor for tensor in (a, b) if tensor is not None]
            value = math.inf
            if a is not None:
                scale = self._largest_so_far((quantity, name), entry_scale(a) if by_entry else magnitude(a))
                value = math.inf if b is None else difference(a, b, scale)
            size = max(magnitude(tensor).item() for tensor in tensors)
            self.all.append(Difference(step, quantity, name, value, min(map(_bits, tensors)), size))

    def _largest_so_far(self, key: tuple[str, str], scale: Tensor) -> Tensor:
        known = self._scales.get(key)
        self._scales[key] = scale if known is None or known.shape != scale.shape else torch.maximum(known, scale)
        return self._scales[key]


def _widen(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _sizes(tensor: Tensor) -> Tensor:
    """Returns absolute values in float64; 0 in the place of what is not finite."""
    return _widen(tensor).abs().nan_to_num(0, 0, 0)


def magnitude(tensor: Tensor) -> Tensor:
    """Returns the largest absolute value, float64 (); 0 if there is none, or none that is finite."""
    return _sizes(tensor).max() if tensor.numel() else torch.zeros((), dtype=torch.float64)


def entry_scale(tensor: Tensor) -> Tensor:
    """Returns what each entry's difference is measured by: its absolute value, or the median of those that are not zero, the
    larger. So a large entry hides nothing in the others, and one that is nearly zero by chance does not make a difference
    large."""
    sizes = _sizes(tensor)
    nonzero = sizes[sizes > 0]
    return sizes.clamp(min=nonzero.median().item()) if nonzero.numel() else sizes


def difference(a: Tensor, b: Tensor, scale: Tensor | None = None) -> float:
    """Returns the largest |a-b| / scale, which is max|a| if none is given; 0 if both are zero or empty, infinite if a alone
    is, or if shapes or NaNs differ, or integers."""
    if a.shape != b.shape:
        return math.inf
    x, y = _widen(a), _widen(b)
    x, y = x.to(dtype := torch.promote_types(x.dtype, y.dtype)), y.to(dtype)
    same = x.isclose(y, rtol=0, atol=0, equal_nan=True)
    if same.all():
        return 0.0
    if not torch.promote_types(a.dtype, b.dtype).is_floating_point and not dtype.is_complex:
        return math.inf  # what is counted is the same or not
    ratios = ((x - y).abs() / (magnitude(a) if scale is None else scale)).masked_fill(same, 0.0)
    return ratios.nan_to_num(math.inf, math.inf).max().item()


def _bits(tensor: Tensor) -> int:
    """Returns the bits of a real number as this tensor holds it; 64 if it holds integers."""
    return torch.finfo(tensor.dtype).bits if tensor.is_floating_point() or tensor.is_complex() else 64


def fingerprints(batch: Any, name: str = "batch") -> Fingerprints:
    tensors = [(name, tensor) for name, tensor in leaves(batch, name) if tensor.ndim and tensor.layout == torch.strided]
    return {name: [_along(tensor, axis, k) for axis in range(min(2, tensor.ndim))] for k, (name, tensor) in enumerate(tensors)}


def _along(tensor: Tensor, axis: int, number: int) -> Axis:
    tensor = tensor.detach().cpu()
    rows = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double().movedim(axis, 0)
    flat = rows.flatten(1) if rows.ndim > 1 else rows[:, None]
    return tuple(rows.shape[1:]), flat @ torch.cos(torch.arange(flat.shape[1], dtype=torch.float64) + number)


def gather(batches: list[Fingerprints], share: int) -> Fingerprints:
    """Returns those of all batches of all processes as of one batch, but once of those that take the same share of it."""
    batches = [batch for others in dict(all_ranks((share, batches))).values() for batch in others]
    names = dict.fromkeys(name for batch in batches for name in batch)
    return {name: [_join(axis) for axis in zip(*(b[name] for b in batches if name in b), strict=True)] for name in names}


def _join(parts: Sequence[Axis]) -> Axis:
    """Empty, with the shape of none, if samples have several shapes."""
    shapes = {shape for shape, _ in parts}
    return (shapes.pop(), torch.cat([numbers for _, numbers in parts])) if len(shapes) == 1 else ((-1,), torch.zeros(0))


def compare_samples(reference: Fingerprints, other: Fingerprints) -> tuple[float | None, set[str], bool]:
    """Returns how far apart they are: zero if both have the same samples, infinite if one has more; None if nothing is
    comparable. Then the names of tensors that were not compared, and whether the other side has more samples."""
    same, left_out, is_longer = defaultdict(list), set(), []
    for name in dict.fromkeys([*reference, *other]):
        axes = zip(reference.get(name, []), other.get(name, []), strict=False)
        of_one_shape = [(a, b) for (shape, a), (others, b) in axes if shape == others != (-1,)]
        if match := next(((a, b) for a, b in of_one_shape if len(a) == len(b)), None):
            same[len(match[0])].append(match)
        else:
            left_out.add(name)
            is_longer += [len(b) > len(a) for a, b in of_one_shape]
    if not same:
        return (math.inf, set(), any(is_longer)) if is_longer else (None, left_out, False)
    totals = ([torch.stack(numbers).sum(dim=0).sort().values for numbers in zip(*p, strict=True)] for p in same.values())
    return max(difference(a, b) for a, b in totals), left_out, False
