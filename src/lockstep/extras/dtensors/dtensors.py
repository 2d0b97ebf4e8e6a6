"""Tensors of which each process holds a shard, torch's DTensor: the full tensor, and the shard of this process."""

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor, contiguous on its own device, by one collective for each dimension of the mesh that divides it."""
    return tensor.full_tensor().contiguous() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(value: Any, target: Any) -> Any:
    """Shard a full tensor as `target` is sharded; return anything else as it is."""
    is_full = isinstance(value, Tensor) and not isinstance(value, DTensor)
    if not (is_full and isinstance(target, DTensor) and value.shape == target.shape):
        return value
    mesh, local = target.device_mesh, value
    # If two dimensions of the mesh share one of the tensor, it is cut in their order; in reverse if fully_shard has cut what
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
