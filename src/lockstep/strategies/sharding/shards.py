"""Tensors of which each process holds a shard, torch's DTensor; containers of them, and the norm of several."""

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

Keys = tuple[Any, ...]  # that lead to a tensor in a container


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(value: Any, target: Any) -> Any:
    """Shard a full tensor as `target` is sharded; return anything else as it is."""
    is_full = isinstance(value, Tensor) and not isinstance(value, DTensor)
    if not (is_full and isinstance(target, DTensor) and value.shape == target.shape):
        return value
    (chunk,) = target.__create_chunk_list__()  # torch.distributed.checkpoint's protocol: which part is here
    local = value[tuple(slice(begin, begin + length) for begin, length in zip(chunk.offsets, chunk.sizes, strict=True))]
    local = local.to(target.device, copy=True)
    layout = {"shape": target.shape, "stride": target.stride()}
    return DTensor.from_local(local, target.device_mesh, target.placements, run_check=False, **layout)


def map_tensors(content: Any, change: Callable[[Tensor, Keys], Any], at: Keys = ()) -> Any:
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
