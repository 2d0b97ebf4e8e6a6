"""Tensors of which each process holds a part (torch's DTensor), and the whole of them."""

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(content: Any, keep: bool = True) -> Any:
    """The same containers, with each tensor that is in parts on the CPU as a whole; None in its place where not kept.

    A collective for each of these tensors, one at a time.
    """
    if isinstance(content, DTensor):
        tensor = gathered(content)
        return tensor.detach().cpu() if keep else None
    if isinstance(content, dict):
        same = copy.copy(content)  # state_dict's versions are attributes of it
        same.update((key, whole(value, keep)) for key, value in content.items())
        return same
    if type(content) in (list, tuple):
        return type(content)(whole(value, keep) for value in content)
    return content


def gathered(tensor: Tensor) -> Tensor:
    """The whole of it, on its own device: one collective where it is in parts, along each dimension of its mesh."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_like(value: Any, target: Any) -> Any:
    """Of a whole tensor the part that this process has of `target`, as such a tensor; anything else as it is."""
    if not (isinstance(target, DTensor) and isinstance(value, Tensor) and value.shape == target.shape):
        return value
    mesh, local = target.device_mesh, value
    # A dimension of the tensor that two of the mesh share is cut in their order; in the other, where fully_shard has cut what
    # tensor parallelism had cut before: torch's _StridedShard.
    is_strided = any(hasattr(placement, "split_factor") for placement in target.placements)
    for dimension in reversed(range(mesh.ndim)) if is_strided else range(mesh.ndim):
        if not (placement := target.placements[dimension]).is_replicate():
            number, axis = mesh.size(dimension), placement.dim  # pyright: ignore[reportAttributeAccessIssue]
            chunks = local.chunk(number, axis)
            rank = mesh.get_local_rank(dimension)
            local = chunks[rank] if rank < len(chunks) else local.narrow(axis, 0, 0)
    local = local.to(target.device, copy=True)
    return DTensor.from_local(local, mesh, target.placements, run_check=False, shape=target.shape, stride=target.stride())


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of it; shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of all of them as one vector, float64 (); one all-reduce. Of a tensor that is not in parts each process
    has the same."""
    squares = [local_square(tensor) / _holders(tensor) for tensor in tensors]
    total = torch.stack(squares).sum()
    dist.all_reduce(total)
    return total.sqrt()


def local_square(tensor: Tensor) -> Tensor:
    local = local_part(tensor.detach())
    dtype = torch.promote_types(local.dtype, torch.float32)
    return torch.linalg.vector_norm(local, dtype=dtype).double().square()


def _holders(tensor: Tensor) -> float:
    """How many processes hold the same numbers as this one."""
    parts = 1
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        parts = math.prod(mesh.size(d) for d, placement in enumerate(tensor.placements) if not placement.is_replicate())
    return dist.get_world_size() / parts
