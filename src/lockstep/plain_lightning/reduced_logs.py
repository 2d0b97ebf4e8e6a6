"""Reduce logged values over processes, with private names of Lightning."""

import inspect
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, wraps
from typing import Any, NamedTuple

import torch
from lightning import LightningModule
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from torch import Tensor

from lockstep.datamodules.batches import samples_in
from lockstep.errors import NamedFailure
from lockstep.plain_lightning.processes import all_ranks, all_shares, any_process
from lockstep.runs.shares import dp_rank_and_size
from lockstep.trainer.steps import batches_trained

_STEP, _EPOCH = "_forward_cache", "_computed"  # attributes of Lightning's results
Parts = dict[int, tuple[float, float]]  # by data-parallel rank: a value and its weight; a mean's value is a weighted sum


class Logged(NamedTuple):
    """Values of this process under a key."""

    hook: str
    names: tuple[str, ...]  # in trainer.callback_metrics
    reduction: str  # mean, sum, max or min
    parts: Parts


def combine(logged: list[Logged]) -> float:
    """Return the value over all ranks."""
    values, weights = zip(*(part for one in logged for part in one.parts.values()), strict=True)
    if (reduction := logged[0].reduction) in ("max", "min"):
        return max(values) if reduction == "max" else min(values)
    if reduction == "sum":
        return math.fsum(values)
    weight = math.fsum(weights)
    return math.fsum(values) / weight if weight else math.nan


def explain_difference(logged: list[Logged], shares: int) -> str | None:
    """Return why an epoch's value can't be that of one process, or None if it can."""
    hook, name, reduction = logged[0].hook.partition(".")[0], logged[0].names[0], logged[0].reduction
    if len(logged) < shares:
        return f"{name} is logged by {len(logged)} of {shares} processes alone"
    is_of_batches = "_step" in hook or "_batch_" in hook
    if is_of_batches or len({value for one in logged for value, _ in one.parts.values()}) == 1:
        return None
    advice = "log a torchmetrics.Metric, or what self.all_gather returns"
    return f"{name}, logged in {hook}, differs between processes, and their {reduction} is kept: {advice}"


class ReducedLogs(_LoggerConnector):
    """Combine what all processes have logged: at the end of each epoch and each validation loader, and after a step the values
    logged with sync_dist=True. Each is one exchange, by key, of sums and numbers of samples.

    If the user's code may set `trainer.should_stop`, ranks exchange it after each hook that may have done so, because a rank that
    stopped alone would block the others. `warn` is called, equally on every rank, with why a value can't be that of one process.
    """

    def __init__(self, trainer: Any, warn: Callable[[str], None]) -> None:
        super().__init__(trainer)
        self._warn = warn
        self._may_sync = False  # True if ranks exchange values after each step
        self._synced: set[str] = set()  # names logged with sync_dist=True
        self._combined: dict[tuple[str, str], Tensor] = {}  # the latest result by attribute and key
        self.before: dict[str, Parts] = {}  # values logged in the epoch before a resumption

    @classmethod
    def replace_in(cls, trainer: Any, warn: Callable[[str], None]) -> "ReducedLogs":
        """Set a connector of this class on a trainer that has not logged yet, and return it."""
        if not isinstance(trainer._logger_connector, cls):
            trainer._logger_connector = cls(trainer, warn)
        return trainer._logger_connector

    def defer_sync(self, model: LightningModule) -> None:
        """Make `model.log` leave sync_dist=True to `exchange_step`. Lightning reduces each value while it is logged, and mixes up
        values if ranks log in another order, or under other keys."""
        log = model.log

        @wraps(log)
        def deferred(name: str, *arguments: Any, sync_dist: bool = False, **options: Any) -> None:
            if sync_dist and options.get("sync_dist_group") is None and not options.get("rank_zero_only"):
                self._synced.add(name)
                sync_dist = False
            log(name, *arguments, sync_dist=sync_dist, **options)

        self._may_sync = self.trainer.world_size > 1 and is_named(self.trainer, "sync_dist")
        if self._may_sync and "log" not in vars(model):
            model.log = deferred

    @cached_property
    def _may_stop(self) -> bool:
        return self.trainer.world_size > 1 and is_named(self.trainer, "should_stop")

    def _stop_alike(self, is_now: bool) -> None:
        if is_now and self.trainer.state.fn == "fit" and self._may_stop:
            self.trainer.should_stop = any_process(self.trainer.should_stop, "trainer.should_stop is set", self._warn)

    def on_batch_end(self) -> None:
        self.exchange_step()
        super().on_batch_end()
        self._stop_alike(self.trainer.training)

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

    def exchange_step(self) -> None:
        """Combine the step's values logged with sync_dist=True, over the ranks that have logged them; a collective."""
        if not self._may_sync:
            return
        results: Any = self.trainer._results
        is_dummy = results.batch_size == 0  # this rank has no sample of the batch
        self._combine(_STEP, {} if is_dummy else self._pending(results, _STEP))

    def _reduce(self) -> None:
        if self.trainer.world_size == 1 and type(self) is ReducedLogs:
            return  # Lightning's own values are those of all
        self._compute_metrics()
        results: Any = self.trainer._results
        everyone, shares = self._combine(_EPOCH, self._pending(results, _EPOCH)), dp_rank_and_size(self.trainer)[1]
        for line in (explain_difference(logged, shares) for logged in everyone.values()):
            if line is not None:
                self._warn(line)

    def _combine(self, attribute: str, own: dict[str, Logged]) -> dict[str, list[Logged]]:
        """Set the combined value as this attribute of each result, and return what each group has logged by key; a collective. A
        rank without the result has the value for callbacks that monitor it."""
        shares, results = all_shares(self.trainer, own), self.trainer._results or {}
        keys = dict.fromkeys(key for share in shares for key in share)
        everyone = {key: [share[key] for share in shares if key in share] for key in keys}
        for key, logged in everyone.items():
            item, value = results.get(key), combine(logged)
            if item is None or item.has_reset:
                others: Any = dict.fromkeys(logged[0].names, torch.tensor(value))
                self._callback_metrics.update(others)
                self._logged_metrics.update(others)
            else:
                vars(item)[attribute] = self._combined[attribute, key] = item.value.new_tensor(value)
        return everyone

    def _compute_metrics(self) -> None:
        """Compute an epoch's torchmetrics in the same order on all ranks. Raise NamedFailure if some rank has not logged one."""
        if self.trainer.world_size == 1:
            return
        results: Any = self.trainer._results
        items = {key: item for key, item in results.valid_items() if not item.is_tensor and item.meta.on_epoch}
        pending = sorted(key for key, item in items.items() if item._computed is None)
        ranks = [set(keys) for keys in all_ranks(pending)]
        if alone := set.union(*ranks) - set.intersection(*ranks):
            raise NamedFailure(f"{', '.join(sorted(alone))}: only some processes log this torchmetrics.Metric; log it in all")
        for key in pending:
            items[key].compute()

    def _pending(self, results: Any, attribute: str) -> dict[str, Logged]:
        """Return the values of a step or an epoch that are not combined yet; Lightning may have computed this rank's own."""
        pending, on_step = {}, attribute == _STEP
        for key, item in results.valid_items():
            meta, sync = item.meta, item.meta.sync
            is_of_epoch = meta.on_epoch and not sync.rank_zero_only and sync.group is None
            is_reduced = meta.on_step and meta.name in self._synced if on_step else is_of_epoch
            if item.is_tensor and is_reduced and vars(item)[attribute] is not self._combined.get((attribute, key), self):
                names = tuple(dict.fromkeys(results._forked_name(item, on_step)))
                parts = self._step_parts(results, item) if on_step else self._parts(key, item)
                pending[key] = Logged(meta.fx, names, sync.op, parts)
        return pending

    def _step_parts(self, results: Any, item: Any) -> Parts:
        samples = samples_in(results.batch) or 1
        value = float(item._forward_cache) * (samples if item.meta.is_mean_reduction else 1)
        return {dp_rank_and_size(self.trainer)[0]: (value, samples)}

    def _parts(self, key: str, item: Any) -> Parts:
        weight = float(item.cumulated_batch_size) if item.meta.is_mean_reduction else 1.0
        return {dp_rank_and_size(self.trainer)[0]: (float(item.value), weight)}

    def collected(self) -> dict[str, Parts]:
        """Return, for a checkpoint, the sums of what the training epoch has logged so far, by key; a collective."""
        pending = self._pending(self.trainer.fit_loop.epoch_loop._results, _EPOCH) if batches_trained(self.trainer) else {}
        sums: dict[str, Parts] = {}
        for share in all_shares(self.trainer, pending):
            for key, logged in share.items():
                if logged.reduction in ("mean", "sum"):
                    sums.setdefault(key, {}).update(logged.parts)
        return sums

    def add_before(self) -> None:
        """Add the checkpoint's values of the epoch to those that later batches have logged."""
        results: Any = self.trainer.fit_loop.epoch_loop._results if self.before else {}
        for key in [key for key in self.before if key in results]:
            self._add(key, results[key], self.before.pop(key))

    def _add(self, key: str, item: Any, parts: Parts) -> None:
        share, number = dp_rank_and_size(self.trainer)
        has_all = parts.keys() == {*range(number)}
        for value, weight in [parts[share]] if has_all else parts.values() if share == 0 else ():
            item.value = item.value + value
            if item.meta.is_mean_reduction:
                item.cumulated_batch_size = item.cumulated_batch_size + int(weight)


def is_named(trainer: Any, name: str) -> bool:
    """Return whether the source files of the model's and the callbacks' own classes contain `name`."""
    modules = {kind.__module__ for part in (trainer.lightning_module, *trainer.callbacks) for kind in own_classes(part)}
    return any(name in source_of(sys.modules.get(module)) for module in modules)


def own_classes(part: Any) -> list[type]:
    """Return the class of an object and its base classes that are not of this package, torch or Lightning."""
    libraries = ("lightning", "lockstep", "torch", "torchmetrics", "builtins")
    return [kind for kind in type(part).__mro__ if kind.__module__.partition(".")[0] not in libraries]


def source_of(code: Any) -> str:
    """Return the source of a function, a class or a module; empty if it is compiled or was typed at a prompt."""
    with suppress(OSError, TypeError):
        return inspect.getsource(code)
    return ""
