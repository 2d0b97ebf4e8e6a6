"""Containers of sharded tensors, and the norm of several."""

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from lockstep.extras.dtensors.dtensors import full_tensor, local_tensor


def map_tensors(content: Any, change: Callable[[Tensor, tuple[Any, ...]], Any], at: tuple[Any, ...] = ()) -> Any:
    """Return the same containers, with change(tensor, keys that lead to it) in the place of each tensor."""
    if isinstance(content, Tensor):
        return change(content, at)
    if isinstance(content, dict):
        same = copy.copy(content)  # state_dict's versions are attributes of it
        same.update((key, map_tensors(value, change, (*at, key))) for key, value in content.items())
        return same
    if type(content) in (list, tuple):
        return type(content)(map_tensors(value, change, (*at, number)) for number, value in enumerate(content))
    return content


def full_tensors(content: Any, keep: bool = True) -> Any:
    """Return the same containers, with the full tensor, on the CPU, of each that is sharded; None in its place without `keep`.

    A collective for each of these tensors, one at a time.
    """

    def full(tensor: Tensor, _: Any) -> Tensor | None:
        if not isinstance(tensor, DTensor):
            return tensor
        gathered = full_tensor(tensor)
        return gathered.detach().cpu() if keep else None

    return map_tensors(content, full)


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm of all of them as one vector, float64 (); one all-reduce. Each process has the same of a tensor
    that is not sharded."""
    squares = [local_square(tensor) / _holders(tensor) for tensor in tensors]
    total = torch.stack(squares).sum()
    dist.all_reduce(total)
    return total.sqrt()


def local_square(tensor: Tensor) -> Tensor:
    local = local_tensor(tensor.detach())
    dtype = torch.promote_types(local.dtype, torch.float32)
    return torch.linalg.vector_norm(local, dtype=dtype).double().square()


def _holders(tensor: Tensor) -> float:
    """Return how many processes hold the same numbers as this one."""
    parts = 1
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        parts = math.prod(mesh.size(d) for d, placement in enumerate(tensor.placements) if not placement.is_replicate())
    return dist.get_world_size() / parts
