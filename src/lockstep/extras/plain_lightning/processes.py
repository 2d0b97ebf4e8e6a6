"""Values of all processes, comparisons between those that train a module, and exchanges of parts of unequal length."""

import math
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lockstep.runs.shares import dp_rank_and_size

GATHERED = (
    "self.all_gather takes unequal numbers of samples from processes, of which the last is repeated until all have as many; "
    "drop_last=True leaves a batch out that does not divide"
)


def all_ranks(value: Any) -> list[Any]:
    """Return the values of all processes, in their order; a collective."""
    if not dist.is_initialized():
        return [value]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def all_shares(trainer: Any, value: Any) -> list[Any]:
    """Return a value for each share: those of the first processes that have it. A collective."""
    everyone = all_ranks(value)
    return everyone[:: len(everyone) // dp_rank_and_size(trainer)[1]]


def names_that_differ(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Return the names of tensors that differ between processes, as a centre of each one's own samples does. A collective."""
    own = {name: _moments(tensor) for name, tensor in tensors}
    ranks = all_ranks(own)
    return [name for name, moments in own.items() if any(not _is_close(moments, other.get(name)) for other in ranks)]


def _moments(tensor: Tensor) -> list[float]:
    """Return what takes no memory: a parameter may fill much of the device."""
    values = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().flatten()
    ends = values[[0, -1]].nan_to_num().tolist() if len(values) else []
    return [len(values), values.nansum(dtype=torch.float64).item(), *ends]


def _is_close(one: list[float], other: list[float] | None) -> bool:
    return other is not None and all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) for a, b in zip(one, other, strict=True))


def gather_unequal_lengths(module: LightningModule, may_differ: Callable[[], bool], warn: Callable[[str], None]) -> None:
    """Let the module's `all_gather` take tensors with other numbers of rows in other processes, which Lightning's sampler would
    have made equal. `may_differ` says, equally in all processes, whether they may."""
    gather = module.all_gather

    def padded(tensor: Tensor) -> Tensor:
        lengths = all_ranks(len(tensor) if tensor.ndim else None)
        if len(set(lengths)) == 1:
            return tensor
        warn(GATHERED)
        return torch.cat([tensor, tensor[-1:].expand(max(lengths) - len(tensor), *tensor.shape[1:])])

    @wraps(gather)
    def gathered(data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        if group is None and may_differ():
            data = apply_to_collection(data, Tensor, padded)
        return gather(data, group, sync_grads)

    module.all_gather = gathered
