"""What a LightningModule logs over an epoch, reduced over processes.

Lightning reduces what was logged with sync_dist=True alone, and keeps each rank's own value otherwise: rank zero's in the logs
and for the best checkpoint. The private names used here are those of lightning/pytorch/trainer/connectors/logger_connector.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector

from lockstep.runs.shares import dp_rank_and_size


class Logged(NamedTuple):
    """What one rank has collected under a key. names: in trainer.callback_metrics; weight: the samples of a mean."""

    hook: str
    names: tuple[str, ...]
    reduction: str  # mean, sum, max, min, or custom
    value: float
    weight: float


def reduce_logs(trainer: Any, warn: Callable[[str], None]) -> None:
    """Gives a trainer of several processes that has not logged yet, the connector of this module. `warn` is called, on every rank
    alike, with a line for each name that can't be the same as on one process."""
    if not isinstance(trainer._logger_connector, ReducedLogs):
        trainer._logger_connector = ReducedLogs(trainer, warn)


class ReducedLogs(_LoggerConnector):
    """At the end of each epoch, and of each validation loader, ranks exchange in one collective what `self.log` has collected.

    A mean is weighted by the batch sizes, as on one process. What was logged in an epoch's last hooks is reduced after them.
    """

    def __init__(self, trainer: Any, warn: Callable[[str], None]) -> None:
        super().__init__(trainer)
        self._warn = warn
        self._reduced: dict[str, Any] = {}  # the value that was computed for a key

    def epoch_end_reached(self) -> None:
        super().epoch_end_reached()
        self._reduce()

    def on_epoch_end(self) -> None:
        self._reduce()
        super().on_epoch_end()

    def _reduce(self) -> None:
        results: Any = self.trainer._results
        pending = {key: metric for key, metric in results.valid_items() if self._is_pending(key, metric)}
        ranks: list[dict[str, Logged]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(ranks, {key: _logged(results, metric) for key, metric in pending.items()})
        shares = ranks[:: len(ranks) // dp_rank_and_size(self.trainer)[1]]  # others have the same samples
        for key in dict.fromkeys(key for rank in shares for key in rank):
            parts = [rank[key] for rank in shares if key in rank]
            for line in _inexact(parts, len(shares)):
                self._warn(line)
            if (value := _combined(parts)) is not None:
                self._keep(key, value, pending.get(key), parts[0].names)

    def _is_pending(self, key: str, metric: Any) -> bool:
        sync = metric.meta.sync
        is_reducible = metric.is_tensor and metric.meta.on_epoch and not sync.rank_zero_only and sync._group is None
        return is_reducible and (metric._computed is None or metric._computed is not self._reduced.get(key))

    def _keep(self, key: str, value: float, metric: Any | None, names: tuple[str, ...]) -> None:
        """As what the metric computes; on a rank that has not logged it, for callbacks that monitor it."""
        if metric is None:
            self._callback_metrics.update(dict.fromkeys(names, torch.tensor(value)))
            return
        metric._computed = self._reduced[key] = torch.tensor(value, dtype=metric.value.dtype, device=metric.value.device)


def _logged(results: Any, metric: Any) -> Logged:
    meta = metric.meta
    kinds = {
        "mean": meta.is_mean_reduction,
        "sum": meta.is_sum_reduction,
        "max": meta.is_max_reduction,
        "min": meta.is_min_reduction,
    }
    reduction = next((kind for kind, holds in kinds.items() if holds), "custom")
    weight = float(metric.cumulated_batch_size) if reduction == "mean" else 1.0
    return Logged(meta.fx, tuple(dict.fromkeys(results._forked_name(metric, False))), reduction, float(metric.value), weight)


def _combined(parts: list[Logged]) -> float | None:
    """None for a reduction of the user's own, which is left to Lightning."""
    values = [part.value for part in parts]
    reductions: Mapping[str, Callable[[], float]] = {
        "mean": lambda: (
            math.fsum(values) / math.fsum(part.weight for part in parts) if any(p.weight for p in parts) else math.nan
        ),
        "sum": lambda: math.fsum(values),
        "max": lambda: max(values),
        "min": lambda: min(values),
    }
    reduce = reductions.get(parts[0].reduction)
    return None if reduce is None else reduce()


def _inexact(parts: list[Logged], shares: int) -> list[str]:
    """Why a name can't be what it is on one process; nothing where it can."""
    hook, name = parts[0].hook.partition(".")[0], parts[0].names[0]
    if len(parts) < shares:
        return [f"{name} is logged by {len(parts)} of {shares} processes alone"]
    if len({part.value for part in parts}) == 1:
        return []
    if parts[0].reduction == "custom":
        return [f"{name} has a reduce_fx of its own, which sees what one process has logged"]
    if "_step" in hook or "_batch_" in hook:
        return []
    advice = "log a torchmetrics.Metric, or what self.all_gather returns"
    return [f"{name}, logged in {hook}, differs between processes, and the {parts[0].reduction} of theirs is kept: {advice}"]
