"""Collectives: gather and compare values of processes, and make all processes follow the decision of one."""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache, partial, wraps
from itertools import chain, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lockstep.runs.shares import dp_rank_and_size

_NONE = object()
GATHERED = (
    "self.all_gather takes unequal numbers of samples from processes, of which the last is repeated until all have as many; "
    "drop_last=True leaves a batch out that does not divide"
)


def all_ranks(value: Any) -> list[Any]:
    """Return the values of all processes, by rank; a collective."""
    if not dist.is_initialized():
        return [value]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value, group=_of_cpus(dist.group.WORLD))  # a GPU would send the pickled bytes
    return everyone


def gather_number(number: int) -> list[int]:
    """Return the numbers of all processes."""
    numbers = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    numbers[dist.get_rank()] = number
    dist.all_reduce(numbers, group=_of_cpus(dist.group.WORLD))
    return numbers.tolist()


@lru_cache(maxsize=1)
def _of_cpus(_: Any) -> Any:
    """Return a gloo group of all processes, created once per process group."""
    return dist.new_group(backend="gloo")


def all_shares(trainer: Any, value: Any) -> list[Any]:
    """Return the value of the first process of each data-parallel group; a collective."""
    everyone = all_ranks(value)
    return everyone[:: len(everyone) // dp_rank_and_size(trainer)[1]]


def names_that_differ(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Return the names of tensors that differ between processes, such as a mean of each one's own samples; a collective."""
    own = {name: _norm(tensor) for name, tensor in tensors}
    ranks = all_ranks(own)
    equal = partial(math.isclose, rel_tol=1e-6, abs_tol=1e-12)
    return [name for name, norm in own.items() if not all(equal(norm, rank.get(name, math.nan)) for rank in ranks)]


def _norm(tensor: Tensor) -> float:
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return torch.linalg.vector_norm(values.detach().float(), dtype=torch.float64).nan_to_num().item()


def gather_unequal_lengths(module: LightningModule, may_differ: Callable[[], bool], warn: Callable[[str], None]) -> None:
    """Make the module's `all_gather` accept tensors whose numbers of rows differ between processes. `may_differ` returns, equally
    in all processes, whether they may differ."""
    gather = module.all_gather

    def padded(tensor: Tensor) -> Tensor:
        lengths = all_ranks(len(tensor) if tensor.ndim else None)
        if len({*lengths}) == 1:
            return tensor
        warn(GATHERED)
        return torch.cat([tensor, tensor[-1:].expand(max(lengths) - len(tensor), *tensor.shape[1:])])

    @wraps(gather)
    def gathered(data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        if group is None and may_differ():
            data = apply_to_collection(data, Tensor, padded)
        return gather(data, group, sync_grads)

    module.all_gather = gathered


def any_process(wish: bool, what: str, warn: Callable[[str], None]) -> bool:
    """Return whether `wish` is true in any process; call `warn` if it is not true in all. A collective."""
    wishes = gather_number(int(wish))
    if 0 < sum(wishes) < len(wishes):
        warn(f"{what} in {sum(wishes)} of {len(wishes)} processes alone, and all follow")
    return any(wishes)


def gather_lists_whole(module: nn.Module) -> None:
    """Make the module's metrics gather list states as a whole, unless the user has set `dist_sync_fn` or `process_group`.

    torchmetrics gathers entry by entry, so that a process with fewer entries blocks the others; padding would change the metric.
    """
    for metric in module.modules():
        if not isinstance(metric, Metric) or metric.dist_sync_fn or metric.process_group:
            continue
        lists = [name for name, state in metric._defaults.items() if isinstance(state, list)]
        if lists := [name for name in lists if metric._reductions[name] is not dim_zero_cat]:
            vars(metric)["_sync_dist"] = partial(_sync, metric, lists)  # copied and pickled with the metric


def _sync(metric: Metric, lists: list[str], *arguments: Any, **named: Any) -> None:
    """Sync a metric's states; the entries of `lists` are then in the order in which one process has them."""
    ranks = all_ranks(apply_to_collection({name: getattr(metric, name) for name in lists}, Tensor, Tensor.cpu))
    vars(metric).update({name: [] for name in lists})
    type(metric)._sync_dist(metric, *arguments, **named)
    for name in lists:
        entries = chain.from_iterable(zip_longest(*(rank[name] for rank in ranks), fillvalue=_NONE))
        state = apply_to_collection([entry for entry in entries if entry is not _NONE], Tensor, Tensor.to, metric.device)
        reduce: Any = metric._reductions[name]
        setattr(metric, name, reduce(state) if reduce and state else state)
