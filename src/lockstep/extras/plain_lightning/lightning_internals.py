"""Private names of Lightning that are needed to load an epoch's batches again, and to see and reduce what modules log.

tests/extras/plain_lightning fails when one of them is gone.
"""

import inspect
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from lightning import Trainer
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric, _Sync
from torch import nn
from torchmetrics import Metric

from lockstep.extras.any_batch.any_batch import samples_in
from lockstep.extras.plain_lightning.loaders import LOADERS, with_change
from lockstep.extras.plain_lightning.logs import Logged, combine, combine_on_device, explain_difference
from lockstep.extras.plain_lightning.streams import gather_number
from lockstep.runs.shares import dp_rank_and_size
from lockstep.trainer.steps import batches_trained

TRAINING, VALIDATION, *_ = LOADERS


def names_logged_in_training(trainer: Trainer) -> set[str]:
    """Return the names that `self.log` has had since the epoch's begin, and those by which Lightning tells the value of a step
    from the epoch's. A callback's metrics have them only after the step."""
    names = {item.meta.name for item in trainer.fit_loop.epoch_loop._results.values()}
    return names | {f"{name}_{part}" for name in names for part in ("step", "epoch")}


def own_values_of_a_step(trainer: Any) -> set[str]:
    """Return the names of values in callbacks' metrics that this process alone has logged in its latest training step."""
    results = trainer.fit_loop.epoch_loop._results
    own = [item for item in results.values() if item.meta.on_step and not item.meta.sync.should]
    return {results._forked_name(item, on_step=True)[1] for item in own}


def names_logged_in_validation(trainer: Any) -> set[str]:
    """Return names that `self.log` had in the sanity check. Metrics of several loaders have them after later validations."""
    results = trainer.fit_loop.epoch_loop.val_loop._results
    return {name for item in results.values() for on_step in (True, False) for name in results._forked_name(item, on_step)}


def leaves_samplers(trainer: Any) -> bool:
    """Return whether `use_distributed_sampler=False` tells Lightning that loaders share out their samples themselves."""
    return not trainer._accelerator_connector.use_distributed_sampler


def change_asked_loaders(
    trainer: Any, change: Callable[[str, list[Any], bool], list[Any]], around: Callable[[str], AbstractContextManager[None]]
) -> None:
    """Let the trainer ask a module or a datamodule for loaders within `around`, and change these (see `change_loaders`). Calls of
    the user's own get them as they are."""
    evaluations = (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
    for source in (loop._data_source for loop in (trainer.fit_loop, *evaluations)):
        if "dataloader" not in vars(source):
            source.dataloader = _asked(source, partial(change, source.name), partial(around, source.name))


def _asked(source: Any, change: Callable[..., Any], around: Callable[[], AbstractContextManager[None]]) -> Callable[[], Any]:
    ask = source.dataloader

    def made() -> Any:
        with around():
            return ask()

    changed = with_change(made, change)
    return lambda: changed() if source.is_module() else ask()


def reload_epochs(trainer: Any) -> dict[str, float]:
    """Return the epochs in which Lightning has asked for loaders last."""
    loop = trainer.fit_loop
    return {TRAINING: loop._last_train_dl_reload_epoch, VALIDATION: loop.epoch_loop.val_loop._last_val_dl_reload_epoch}


def set_reload_epochs(trainer: Any, epochs: dict[str, float]) -> None:
    loop = trainer.fit_loop
    loop._last_train_dl_reload_epoch = epochs.get(TRAINING, loop._last_train_dl_reload_epoch)
    validation = loop.epoch_loop.val_loop
    validation._last_val_dl_reload_epoch = epochs.get(VALIDATION, validation._last_val_dl_reload_epoch)


def begin_batches_again(trainer: Trainer, before: Callable[[int], None], are_passed: bool = False) -> None:
    """Load the epoch's batches from the first on, and pass over those that were trained on, unless the loaders have done so.

    The fit loop makes the iterator before it knows the epoch, and goes on with it in the first epoch after a resumption: data
    workers have begun to load another epoch by then (Lightning issue 21938), and what was trained on is trained on again (19764).
    `before` is called with -1 before the first batch, then with the number of each that is passed over.
    """
    loop: Any = trainer.fit_loop
    passed = batches_trained(trainer)
    for loader in loop._combined_loader.flattened:
        _set_sampler_epoch(loader, trainer.current_epoch)
    before(-1)
    batches = iter(loop._data_fetcher)
    if trainer.current_epoch == 0:
        before(-1)  # the first epoch of a run begins after the first iterator is made
    loaded = getattr(batches, "iterator_wrapper", batches)  # the argument of a step that takes a dataloader_iter
    for batch in range(passed):
        if not are_passed:
            next(loaded, None)
        before(batch)
    batches.fetched = 0  # the loop of the epoch adds them itself


def reduce_logs(trainer: Any, warn: Callable[[str], None]) -> None:
    """Give a trainer of several processes that has not logged yet a connector that reduces. `warn` is called, equally on every
    rank, with a line for each name that can't be the same as on one process."""
    if isinstance(trainer._logger_connector, ReducedLogs):
        return
    trainer._logger_connector = connector = ReducedLogs(trainer, warn)
    if connector.may_sync:
        trainer.fit_loop.epoch_loop._results = StepResults(training=True)
        for loop in (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop):
            loop._results = StepResults(training=False)


class StepResults(_ResultCollection):
    """Keep what is logged of a step with sync_dist=True until ranks exchange it by key. Lightning reduces it while it is logged,
    and mixes the values of ranks that log in another order, or other keys."""

    def __init__(self, training: bool) -> None:
        super().__init__(training)
        self.unsynced: dict[str, int] = {}  # keys, and the samples of which they are

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

    A mean is weighted by the batch sizes, as on one process. Logs of an epoch's last hooks are reduced after them.
    Where code of the user's own may set `trainer.should_stop`, ranks ask each other after each hook that may have done so: one
    that stopped alone would leave the others waiting for it.
    """

    def __init__(self, trainer: Any, warn: Callable[[str], None]) -> None:
        super().__init__(trainer)
        self._warn = warn
        self._reduced: dict[str, Any] = {}  # the value that was computed for a key

    @cached_property
    def may_sync(self) -> bool:
        return self._is_named("sync_dist")

    @cached_property
    def _may_stop(self) -> bool:
        return self._is_named("should_stop")

    def _is_named(self, name: str) -> bool:
        trainer: Any = self.trainer
        return is_named((trainer.lightning_module, *trainer.callbacks), name)

    def _stop_alike(self, is_now: bool) -> None:
        if is_now and self.trainer.state.fn == "fit" and self._may_stop:
            wishes = gather_number(int(self.trainer.should_stop))
            self.trainer.should_stop = any(wishes)
            if 0 < sum(wishes) < len(wishes):
                self._warn(f"trainer.should_stop is set by {sum(wishes)} of {len(wishes)} processes alone, and all stop")

    def on_batch_end(self) -> None:
        self.exchange_step()
        super().on_batch_end()
        self._stop_alike(self.trainer.training)

    def exchange_step(self) -> None:
        """Combine what ranks have logged of a step with sync_dist=True, by key and weighted by samples; a collective. What some
        alone have logged is combined of these."""
        results: Any = self.trainer._results
        if not isinstance(results, StepResults):
            return
        own, results.unsynced = results.unsynced, {}
        if not any(orders := gather_number(zlib.crc32(repr([*own]).encode()) if own else 0)):
            return
        metas = {key: results[key].meta for key in own}
        if len({*orders}) > 1:
            ranks: list[dict[str, Any]] = [{} for _ in orders]
            dist.all_gather_object(ranks, metas)
            metas = {key: meta for rank in ranks for key, meta in rank.items()}
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

    def _reduce(self) -> None:
        results: Any = self.trainer._results
        pending = {key: metric for key, metric in results.valid_items() if self._is_pending(key, metric)}
        ranks: list[dict[str, list[Logged]]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(ranks, {key: self._collected(key, logged(results, metric)) for key, metric in pending.items()})
        shares = ranks[:: len(ranks) // dp_rank_and_size(self.trainer)[1]]  # others have the same samples
        for key in dict.fromkeys(key for rank in shares for key in rank):
            each = [rank[key] for rank in shares if key in rank]
            parts = [part for rank in each for part in rank]
            for line in explain_difference(parts, len(each), len(shares)):
                self._warn(line)
            if (value := combine(parts)) is not None:
                self._keep(key, value, pending.get(key), parts[0].names)

    def _collected(self, key: str, value: Logged) -> list[Logged]:
        """Return what this process has collected under a key; a subclass may have it in parts."""
        return [value]

    def _is_pending(self, key: str, metric: Any) -> bool:
        sync = metric.meta.sync
        is_reducible = metric.is_tensor and metric.meta.on_epoch and not sync.rank_zero_only and sync._group is None
        return is_reducible and (metric._computed is None or metric._computed is not self._reduced.get(key))

    def _keep(self, key: str, value: float, metric: Any | None, names: tuple[str, ...]) -> None:
        """Set a value as the metric's result; on a rank that has not logged it, for callbacks that monitor it."""
        if metric is None:
            self._callback_metrics.update(dict.fromkeys(names, torch.tensor(value)))
            return
        metric._computed = self._reduced[key] = torch.tensor(value, dtype=metric.value.dtype, device=metric.value.device)


def logged(results: Any, metric: Any) -> Logged:
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


def is_named(parts: Iterable[Any], name: str) -> bool:
    """Return whether the files of the parts' classes have this name, except those of this package, torch and Lightning."""
    modules = {kind.__module__ for part in parts for kind in type(part).__mro__}
    for module in modules - {"builtins"}:
        if module.partition(".")[0] not in ("lightning", "lockstep", "torch", "torchmetrics"):
            with suppress(OSError, TypeError, KeyError):  # typed at a prompt, or compiled
                if name in inspect.getsource(sys.modules[module]):
                    return True
    return False


@contextmanager
def counting_nothing(trainer: Any, model: nn.Module) -> Iterator[None]:
    """Leave out of the epoch's values what a training step logs meanwhile, with whatever batch size, and the updates of the
    model's torchmetrics."""
    log_batch_as(trainer, 0)  # also behind it, in the model's hook at the batch's end
    results = trainer._results
    metrics = [(metric, vars(metric) | _copied(metric.metric_state)) for metric in model.modules() if isinstance(metric, Metric)]
    logged = {key: item.metric_state for key, item in results.items()}
    yield
    for metric, before in metrics:
        vars(metric).update(before)
    for key, item in results.items():
        vars(item).update(logged.get(key) or _copied(item._defaults))


def _copied(states: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(state) if isinstance(state, list) else state.clone() for name, state in states.items()}


def log_batch_as(trainer: Trainer, samples: int) -> None:
    """Count logs in this batch's step as of so many samples in an epoch's mean; Lightning takes the batch's length."""
    results: Any = trainer._results
    results.batch_size = samples
