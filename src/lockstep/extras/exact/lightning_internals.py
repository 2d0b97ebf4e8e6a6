"""Private names of Lightning that are needed to reduce what virtual workers log.

tests/extras/exact/test_exact_plain.py fails when one of them is gone.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from lockstep.extras.exact.metrics import WorkerMetrics
from lockstep.extras.plain_lightning.logs import Logged, combine
from lockstep.extras.plain_lightning.reduced_logs import ReducedLogs, logged

_KEPT = 256  # terms of a sum, before they become the few that have the same sum


def reduce_logs_of_workers(trainer: Any, warn: Callable[[str], None]) -> None:
    if not isinstance(trainer._logger_connector, WorkerLogs):
        trainer._logger_connector = WorkerLogs(trainer, warn)


class WorkerLogs(ReducedLogs):
    """Round the sum of an epoch's logs once, from exact terms: in whatever order workers log, it is the same."""

    def __init__(self, trainer: Any, warn: Callable[[str], None]) -> None:
        super().__init__(trainer, warn)
        self._terms: dict[str, list[float]] = {}
        self._weights: dict[str, float] = {}
        self._in_step: dict[str, list[Logged]] = {}  # logs of this process's workers in the step with sync_dist

    def take(self) -> None:
        """Take what a worker has logged from Lightning's own sums, which the next one then begins with zero."""
        results: Any = self.trainer._results
        for key, metric in results.valid_items():
            if not metric.is_tensor:
                continue
            if metric.meta.on_step and metric.meta.sync.should:
                value = metric._forward_cache
                self._in_step.setdefault(key, []).append(logged(results, metric)._replace(value=float(value)))
            if metric.meta.on_epoch and (metric.meta.is_mean_reduction or metric.meta.is_sum_reduction):
                self._add(key, float(metric.value), float(getattr(metric, "cumulated_batch_size", 1.0)))
                metric.value = torch.zeros_like(metric.value)
                if metric.meta.is_mean_reduction:
                    metric.cumulated_batch_size = torch.zeros_like(metric.cumulated_batch_size)

    def _add(self, key: str, value: float, weight: float) -> None:
        terms = self._terms.setdefault(key, [])
        terms.append(value)
        self._weights[key] = self._weights.get(key, 0.0) + weight
        if len(terms) > _KEPT:
            self._terms[key] = exact_terms(terms)

    @property
    def has_synced(self) -> bool:
        return bool(self._in_step)

    def sync_step(self) -> None:
        """Combine what all workers have logged in a step with sync_dist; a collective."""
        ranks: list[dict[str, list[Logged]]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(ranks, self._in_step)
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
        if key not in self._terms:
            return [value]
        first, *others = exact_terms(self._terms[key])
        return [value._replace(value=first, weight=self._weights[key]), *(value._replace(value=v, weight=0.0) for v in others)]

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
                self._terms.pop(key, None)
                self._weights.pop(key, None)


def exact_terms(terms: list[float]) -> list[float]:
    """Return few numbers that have exactly the same sum: its rounded value, the rest, rounded, and so on."""
    if not all(map(math.isfinite, terms)):
        return [sum(terms)]
    few = [math.fsum(terms)]
    while left := math.fsum([*terms, *(-one for one in few)]):
        few.append(left)
    return few
