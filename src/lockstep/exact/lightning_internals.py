"""Private names of Lightning that are needed to reduce what virtual workers log.

tests/options/exact/test_exact_plain.py fails when one of them is gone.
"""

from collections.abc import Callable
from typing import Any

import torch

from lockstep.exact.metrics import WorkerMetrics
from lockstep.plain_lightning.processes import all_ranks
from lockstep.plain_lightning.reduced_logs import Logged, ReducedLogs, combine, logged
from lockstep.trainer.steps import batches_trained


def reduce_logs_of_workers(trainer: Any, warn: Callable[[str], None]) -> "WorkerLogs":
    if not isinstance(trainer._logger_connector, WorkerLogs):
        trainer._logger_connector = WorkerLogs(trainer, warn)
    return trainer._logger_connector


class WorkerLogs(ReducedLogs):
    """Sum the logs of each worker by itself, and combine those of all workers at the end of an epoch."""

    def __init__(self, trainer: Any, warn: Callable[[str], None]) -> None:
        super().__init__(trainer, warn)
        self._sums: dict[str, dict[int, tuple[float, float]]] = {}  # values and weights of this process's workers
        self._in_step: dict[str, list[Logged]] = {}  # logs of this process's workers in the step with sync_dist

    def take(self, worker: int) -> None:
        """Take what a worker has logged from Lightning's own sums, which the next one then begins with zero."""
        results: Any = self.trainer._results
        for key, metric in results.valid_items():
            if not metric.is_tensor:
                continue
            if metric.meta.on_step and metric.meta.sync.should:
                value = metric._forward_cache
                self._in_step.setdefault(key, []).append(logged(results, metric)._replace(value=float(value)))
            if metric.meta.on_epoch and (metric.meta.is_mean_reduction or metric.meta.is_sum_reduction):
                value, weight = self._sums.setdefault(key, {}).get(worker, (0.0, 0.0))
                logged_weight = float(getattr(metric, "cumulated_batch_size", 1.0))
                self._sums[key][worker] = value + float(metric.value), weight + logged_weight
                metric.value = torch.zeros_like(metric.value)
                if metric.meta.is_mean_reduction:
                    metric.cumulated_batch_size = torch.zeros_like(metric.cumulated_batch_size)

    def collected(self) -> dict[str, list[Any]]:
        """Return what the epoch has logged so far, for a checkpoint: by key, the sums of each worker; a collective."""
        ranks = all_ranks(self._sums if batches_trained(self.trainer) else {})
        keys = dict.fromkeys(key for rank in ranks for key in rank)
        return {key: [[worker, *sums] for rank in ranks for worker, sums in rank.get(key, {}).items()] for key in keys}

    def add_before(self) -> None:
        """Add what a checkpoint has of this process's workers to what the batches after it have logged."""
        for key in [key for key in self.before if key in self._sums]:
            before = {worker: (value, weight) for worker, value, weight in self.before.pop(key)}
            for worker, (value, weight) in self._sums[key].items():
                earlier = before.get(worker, (0.0, 0.0))
                self._sums[key][worker] = earlier[0] + value, earlier[1] + weight

    @property
    def has_synced(self) -> bool:
        return bool(self._in_step)

    def sync_step(self) -> None:
        """Combine what all workers have logged in a step with sync_dist; a collective."""
        ranks = all_ranks(self._in_step)
        self._in_step = {}
        results: Any = self.trainer._results
        for key, metric in results.items():
            if parts := [part._replace(weight=1.0) for rank in ranks for part in rank.get(key, ())]:
                metric._forward_cache = torch.tensor(combine(parts), dtype=metric.value.dtype, device=metric.value.device)
                if not metric.meta.on_epoch:
                    metric.value = metric._forward_cache

    def epoch_end_reached(self) -> None:
        """Merge the metrics of all workers before the next are computed, at the end of each validation loader, too."""
        for callback in self.trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(callback, WorkerMetrics):
                callback.merge()
        super().epoch_end_reached()

    def _collected(self, key: str, value: Logged) -> list[Logged]:
        sums = self._sums.get(key, {}).values()
        return [value._replace(value=total, weight=weight) for total, weight in sums] or [value]

    def should_reset_tensors(self, fx: str) -> bool:
        does = super().should_reset_tensors(fx)
        if does:
            self._forget(fx)
        return does

    def reset_results(self) -> None:
        self._forget()
        super().reset_results()

    def _forget(self, fx: str | None = None) -> None:
        for key, metric in (self.trainer._results or {}).items():
            if fx in (None, metric.meta.fx):
                self._sums.pop(key, None)
