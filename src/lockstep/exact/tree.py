"""Sums over V virtual workers in one binary tree, the same on any number of processes that divides V.

Workers v and v + V/2 are summed first, then those sums of v and v + V/4, and so on. The process of rank r of N has the
workers r, r + N, r + 2 N, ...: while V/2, V/4, ... are multiples of N a sum is within one process, after that of the processes
r and r + N/2, r and r + N/4, ... Both of these add, each its own first: a + b is b + a to the bit.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

Tensors = list[Tensor]


def local_sum(count: int, leaf: Callable[[int], Tensors], first: int = 0, step: int = 1) -> Tensors:
    """Return the sum of the leaves `first`, `first + step`, ... below `count`, a power of two; `leaf(0)` is computed last.

    At most log2(count) + 1 sums are alive at once.
    """
    if step == count:
        return leaf(first)
    others = local_sum(count, leaf, first + step, 2 * step)
    return add(local_sum(count, leaf, first, 2 * step), others)


def sum_over_processes(own: Tensors) -> Tensors:
    """Replace `own` by the sum of the tensors of all processes, a power of two of them, and return it; a collective. The tensors
    have the same shapes and types in each process."""
    distance = dist.get_world_size() // 2 if dist.is_initialized() else 0
    while distance:
        add(own, _exchange(own, dist.get_rank() ^ distance))
        distance //= 2
    return own


def _exchange(sent: Tensors, partner: int) -> Tensors:
    """Return the tensors of the partner. GPUs exchange through the host's memory by gloo, which takes any memory for the
    host's."""
    if sent and sent[0].is_cuda and dist.get_backend() == "gloo":
        there = _exchange([tensor.cpu() for tensor in sent], partner)
        return [tensor.to(own.device) for tensor, own in zip(there, sent, strict=True)]
    received = [torch.empty_like(tensor) for tensor in sent]
    pairs = [(dist.isend, sent), (dist.irecv, received)]
    operations = [dist.P2POp(name, tensor, partner) for name, tensors in pairs for tensor in tensors if tensor.numel()]
    for request in dist.batch_isend_irecv(operations) if operations else ():
        request.wait()
    return received


def add(a: Tensors, b: Tensors) -> Tensors:
    return [x.add_(y) for x, y in zip(a, b, strict=True)]
