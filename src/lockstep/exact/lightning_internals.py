"""Private names of Lightning that are needed to reduce what virtual workers log.

tests/options/exact/test_exact.py fails when one of them is gone.
"""

from collections.abc import Callable
from typing import Any

import torch

from lockstep.exact.metrics import WorkerMetrics
from lockstep.plain_lightning.reduced_logs import Logged, Parts, ReducedLogs


class WorkerLogs(ReducedLogs):
    """Sum the logs of each worker by itself, and combine those of all workers at the end of an epoch."""

    def __init__(self, trainer: Any, warn: Callable[[str], None]) -> None:
        super().__init__(trainer, warn)
        self._sums: dict[str, Parts] = {}  # values and weights of this process's workers
        self._in_step: dict[str, Logged] = {}  # logs of this process's workers in the step with sync_dist

    def take(self, worker: int) -> None:
        """Take what a worker has logged from Lightning's own sums, which the next one then begins with zero."""
        results: Any = self.trainer._results
        for key, metric in results.valid_items():
            if not metric.is_tensor:
                continue
            if metric.meta.on_step and metric.meta.sync.should:
                logged = Logged(metric.meta.fx, results._forked_name(metric, True), metric.meta.sync.op, {})
                self._in_step.setdefault(key, logged).parts[worker] = (float(metric._forward_cache), 1.0)
            if metric.meta.on_epoch and (metric.meta.is_mean_reduction or metric.meta.is_sum_reduction):
                value, weight = self._sums.setdefault(key, {}).get(worker, (0.0, 0.0))
                logged_weight = float(getattr(metric, "cumulated_batch_size", 1.0))
                self._sums[key][worker] = value + float(metric.value), weight + logged_weight
                metric.value = torch.zeros_like(metric.value)
                if metric.meta.is_mean_reduction:
                    metric.cumulated_batch_size = torch.zeros_like(metric.cumulated_batch_size)

    def _add(self, key: str, item: Any, parts: Parts) -> None:
        """Add what a checkpoint has of this process's workers to what the batches after it have logged."""
        for worker, (value, weight) in self._sums.get(key, {}).items():
            earlier = parts.get(worker, (0.0, 0.0))
            self._sums[key][worker] = earlier[0] + value, earlier[1] + weight

    @property
    def has_synced(self) -> bool:
        return bool(self._in_step)

    def sync_step(self) -> None:
        """Combine what all workers have logged in a step with sync_dist; a collective."""
        own, self._in_step = self._in_step, {}
        self._combine("_forward_cache", own)

    def epoch_end_reached(self) -> None:
        """Merge the metrics of all workers before the next are computed, at the end of each validation loader, too."""
        for callback in self.trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(callback, WorkerMetrics):
                callback.merge()
        super().epoch_end_reached()

    def _parts(self, key: str, item: Any) -> Parts:
        return self._sums.get(key) or super()._parts(key, item)

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
