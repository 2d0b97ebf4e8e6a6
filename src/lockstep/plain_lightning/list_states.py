"""Gather list states of torchmetrics as a whole, because processes may have unequal numbers of entries.

torchmetrics gathers entry by entry, so that a process with fewer entries blocks the others; padding would change the metric.
This module has torchmetrics' private names.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain, zip_longest
from typing import Any

import torch.distributed as dist
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from torchmetrics.utilities.distributed import gather_all_tensors

_NONE = object()


def gather_lists_whole(module: nn.Module) -> None:
    """Make the module's metrics gather list states as a whole, unless the user has set `dist_sync_fn`."""
    for metric in module.modules():
        if isinstance(metric, Metric) and metric.dist_sync_fn is None:
            vars(metric)["_sync_dist"] = partial(_sync, metric)  # copied and pickled with the metric


def _sync(metric: Metric, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
    states = {name: getattr(metric, name) for name, reduce in metric._reductions.items() if reduce is not dim_zero_cat}
    lists = {name: state for name, state in states.items() if isinstance(state, list)}
    group = process_group or metric.process_group
    ranks: list[Any] = [{}] * dist.get_world_size(group)
    if lists:
        dist.all_gather_object(ranks, apply_to_collection(lists, Tensor, Tensor.cpu), group)
        vars(metric).update({name: [] for name in lists})
    type(metric)._sync_dist(metric, dist_sync_fn, process_group)
    device = "cpu" if metric.compute_on_cpu else metric.device
    for name in lists:
        entries = chain.from_iterable(zip_longest(*(rank[name] for rank in ranks), fillvalue=_NONE))  # as on one process
        state = apply_to_collection([entry for entry in entries if entry is not _NONE], Tensor, Tensor.to, device)
        reduce: Any = metric._reductions[name]
        setattr(metric, name, reduce(state) if reduce and state else state)
