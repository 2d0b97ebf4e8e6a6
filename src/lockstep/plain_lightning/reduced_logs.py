"""Reduce logged values over processes, with private names of Lightning."""

import inspect
import math
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric, _Sync
from torch import Tensor

from lockstep.datamodules.batches import samples_in
from lockstep.plain_lightning.processes import all_ranks, all_shares, any_process, gather_number
from lockstep.runs.shares import dp_rank_and_size
from lockstep.trainer.steps import batches_trained


class Logged(NamedTuple):
    """The value of one rank under a key. names: those in trainer.callback_metrics; weight: number of samples of a mean."""

    hook: str
    names: tuple[str, ...]
    reduction: str  # mean, sum, max or min
    value: float
    weight: float


def combine(parts: list[Logged]) -> float:
    """Return the value over all ranks."""
    values, reduction = [part.value for part in parts], parts[0].reduction
    if reduction in ("max", "min"):
        return max(values) if reduction == "max" else min(values)
    if reduction == "sum":
        return math.fsum(values)
    weight = math.fsum(part.weight for part in parts)
    return math.fsum(values) / weight if weight else math.nan


def combine_on_device(reduction: str, values: Tensor, weights: Tensor) -> Tensor:
    """Return a step's value over all ranks, without waiting for the device. Ranks without samples do not count."""
    counts = weights > 0
    if reduction in ("max", "min"):
        sign = 1 if reduction == "max" else -1
        return sign * (sign * values).where(counts, -math.inf).amax()
    counted = values.where(counts, 0.0)
    return counted.sum() if reduction == "sum" else (counted * weights).sum() / weights.sum()


def explain_difference(parts: list[Logged], logging: int, shares: int) -> list[str]:
    """Return why a name, logged by `logging` of the processes, can't have the value of one process; empty if it can."""
    hook, name = parts[0].hook.partition(".")[0], parts[0].names[0]
    if logging < shares:
        return [f"{name} is logged by {logging} of {shares} processes alone"]
    if len({part.value for part in parts}) == 1:
        return []
    if "_step" in hook or "_batch_" in hook:
        return []
    advice = "log a torchmetrics.Metric, or what self.all_gather returns"
    return [f"{name}, logged in {hook}, differs between processes, and their {parts[0].reduction} is kept: {advice}"]


def reduce_logs(trainer: Any, warn: Callable[[str], None]) -> "ReducedLogs":
    """Set a connector that reduces logged values on a trainer that has not logged yet. It calls `warn`, equally on every rank,
    with a line for each name that can't have the value of one process."""
    if isinstance(trainer._logger_connector, ReducedLogs):
        return trainer._logger_connector
    trainer._logger_connector = connector = ReducedLogs(trainer, warn)
    if trainer.world_size > 1 and connector.may_sync:
        trainer.fit_loop.epoch_loop._results = StepResults(training=True)
        for loop in (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop):
            loop._results = StepResults(training=False)
    return connector


class StepResults(_ResultCollection):
    """Store a step's values logged with sync_dist=True until ranks exchange them by key. Lightning reduces each while it is
    logged, and mixes up values if ranks log in another order or other keys."""

    def __init__(self, training: bool) -> None:
        super().__init__(training)
        self.unsynced: dict[str, int] = {}  # keys, and the number of samples of each

    def log(self, *arguments: Any, **options: Any) -> None:
        if options["sync_dist_group"] is None and not options["rank_zero_only"]:
            options["sync_dist_fn"] = _Sync.no_op
        super().log(*arguments, **options)  # pyright: ignore[reportAttributeAccessIssue]

    def update_metrics(self, key: str, value: Any, batch_size: int) -> None:
        super().update_metrics(key, value, batch_size)  # pyright: ignore[reportAttributeAccessIssue]
        item, meta = self[key], self[key].meta
        if batch_size and item.is_tensor and meta.on_step and meta.sync.should and meta.sync.fn is _Sync.no_op:  # 0: a dummy
            self.unsynced[key] = samples_in(self.batch) or 1


class ReducedLogs(_LoggerConnector):
    """Exchange in one collective, at the end of each epoch and of each validation loader, what `self.log` has collected.

    A mean is weighted by batch sizes, as on one process. Logs of an epoch's last hooks are reduced after them.
    If the user's code may set `trainer.should_stop`, ranks exchange it after each hook that may have done so, because a rank that
    stopped alone would block the others.
    """

    def __init__(self, trainer: Any, warn: Callable[[str], None]) -> None:
        super().__init__(trainer)
        self._warn = warn
        self._reduced: dict[str, Any] = {}  # the value computed for each key
        self.before: dict[str, list[Any]] = {}  # values logged in the epoch before a resumption

    @cached_property
    def may_sync(self) -> bool:
        return is_named(self.trainer, "sync_dist")

    @cached_property
    def _may_stop(self) -> bool:
        return is_named(self.trainer, "should_stop")

    def _stop_alike(self, is_now: bool) -> None:
        if is_now and self.trainer.world_size > 1 and self.trainer.state.fn == "fit" and self._may_stop:
            self.trainer.should_stop = any_process(self.trainer.should_stop, "trainer.should_stop is set", self._warn)

    def on_batch_end(self) -> None:
        self.exchange_step()
        super().on_batch_end()
        self._stop_alike(self.trainer.training)

    def exchange_step(self) -> None:
        """Combine the ranks' values of a step logged with sync_dist=True, by key and weighted by samples; a collective. A key
        that only some ranks have logged is combined over these."""
        results: Any = self.trainer._results
        if not isinstance(results, StepResults):
            return
        own, results.unsynced = results.unsynced, {}
        if not any(orders := gather_number(zlib.crc32(repr([*own]).encode()) if own else 0)):
            return
        metas = {key: results[key].meta for key in own}
        if len({*orders}) > 1:
            metas = {key: meta for rank in all_ranks(metas) for key, meta in rank.items()}
        table = torch.zeros(len(metas), 2, dtype=torch.float64, device=self.trainer.strategy.root_device)
        for row, key in zip(table, metas, strict=True):
            if key in own:
                row[0], row[1] = results[key]._forward_cache.detach(), own[key]
        tables = [torch.zeros_like(table) for _ in orders]
        dist.all_gather(tables, table)
        shares = torch.stack(tables[:: len(tables) // dp_rank_and_size(self.trainer)[1]], dim=-1)
        for (key, meta), (values, weights) in zip(metas.items(), shares, strict=True):
            item = results.setdefault(key, _ResultMetric(meta, is_tensor=True).to(table.device))
            item._forward_cache = combine_on_device(meta.sync.op, values, weights).to(item.value.dtype)
            item.value = item.value if meta.on_epoch else item._forward_cache
            item.has_reset = False

    def reset_results(self) -> None:
        self._stop_alike(self.trainer.validating)  # after its last hook
        super().reset_results()

    def epoch_end_reached(self) -> None:
        super().epoch_end_reached()
        self._reduce()

    def on_epoch_end(self) -> None:
        self._reduce()
        self._stop_alike(self.trainer.training)
        super().on_epoch_end()

    def collected(self) -> dict[str, list[Any]]:
        """Return, for a checkpoint, what the training epoch has logged so far: by key, sums of values and weights for each
        data-parallel group; a collective."""
        results: Any = self.trainer.fit_loop.epoch_loop._results
        pending = {key: metric for key, metric in results.valid_items() if self._is_pending(key, metric)}
        shares = self._gather(results, pending if batches_trained(self.trainer) else {})
        keys = dict.fromkeys(key for share in shares for key in share if share[key][0].reduction in ("mean", "sum"))
        return {key: [[[part.value, part.weight] for part in share.get(key, ())] for share in shares] for key in keys}

    def add_before(self) -> None:
        """Add the checkpoint's values of the epoch to those that later batches have logged."""
        if not self.before:
            return
        results: Any = self.trainer.fit_loop.epoch_loop._results
        share, number = dp_rank_and_size(self.trainer)
        for key in [key for key in self.before if key in results]:
            shares = self.before.pop(key)
            parts = shares[share] if len(shares) == number else [part for one in shares for part in one] if share == 0 else []
            item = results[key]
            for value, weight in parts:
                item.value = item.value + value
                if item.meta.is_mean_reduction:
                    item.cumulated_batch_size = item.cumulated_batch_size + int(weight)

    def _gather(self, results: Any, pending: dict[str, Any]) -> list[dict[str, list[Logged]]]:
        return all_shares(self.trainer, {key: self._collected(key, logged(results, item)) for key, item in pending.items()})

    def _reduce(self) -> None:
        if self.trainer.world_size == 1 and type(self) is ReducedLogs:
            return  # Lightning's own values are those of all
        self._compute_metrics()
        results: Any = self.trainer._results
        pending = {key: metric for key, metric in results.valid_items() if self._is_pending(key, metric)}
        shares = self._gather(results, pending)
        for key in dict.fromkeys(key for rank in shares for key in rank):
            each = [rank[key] for rank in shares if key in rank]
            parts = [part for rank in each for part in rank]
            for line in explain_difference(parts, len(each), len(shares)):
                self._warn(line)
            self._keep(key, combine(parts), pending.get(key), parts[0].names)

    def _compute_metrics(self) -> None:
        """Compute an epoch's torchmetrics in the same order on all ranks. Ranks that have not logged a metric take part too."""
        if self.trainer.world_size == 1:
            return
        results: Any = self.trainer._results
        epochs = {key: item for key, item in results.valid_items() if not item.is_tensor and item.meta.on_epoch}
        pending = {key: item for key, item in epochs.items() if item._computed is None}
        own = {key: (item.meta.metric_attribute, results._forked_name(item, False)) for key, item in pending.items()}
        for key, (attribute, names) in sorted({key: value for rank in all_ranks(own) for key, value in rank.items()}.items()):
            if key in pending:
                pending[key].compute()
            else:
                metric: Any = self.trainer.lightning_module.get_submodule(attribute)
                values: Any = dict.fromkeys(names, metric.compute())
                self._callback_metrics.update(values)
                metric.reset()  # as Lightning does where it was logged

    def _collected(self, key: str, value: Logged) -> list[Logged]:
        """Return what this process has collected under a key; a subclass may return several parts."""
        return [value]

    def _is_pending(self, key: str, metric: Any) -> bool:
        sync = metric.meta.sync
        is_reducible = metric.is_tensor and metric.meta.on_epoch and not sync.rank_zero_only and sync._group is None
        return is_reducible and (metric._computed is None or metric._computed is not self._reduced.get(key))

    def _keep(self, key: str, value: float, metric: Any | None, names: tuple[str, ...]) -> None:
        """Set a value as the metric's result; on a rank that has not logged it, set it for callbacks that monitor it."""
        if metric is None:
            self._callback_metrics.update(dict.fromkeys(names, torch.tensor(value)))
            return
        metric._computed = self._reduced[key] = metric.value.new_tensor(value)


def logged(results: Any, metric: Any) -> Logged:
    meta = metric.meta
    reduction = meta.sync.op  # Lightning accepts mean, sum, max and min
    weight = float(metric.cumulated_batch_size) if reduction == "mean" else 1.0
    return Logged(meta.fx, tuple(dict.fromkeys(results._forked_name(metric, False))), reduction, float(metric.value), weight)


def is_named(trainer: Any, name: str) -> bool:
    """Return whether the source files of the model's and the callbacks' classes contain `name`, not counting this package, torch
    and Lightning."""
    modules = {kind.__module__ for part in (trainer.lightning_module, *trainer.callbacks) for kind in type(part).__mro__}
    own = [module for module in modules if module.partition(".")[0] not in ("lightning", "lockstep", "torch", "torchmetrics")]
    return any(name in source_of(sys.modules.get(module)) for module in own)


def source_of(code: Any) -> str:
    """Return the source of a function or a module; empty if it is compiled or was typed at a prompt."""
    with suppress(OSError, TypeError):
        return inspect.getsource(code)
    return ""
