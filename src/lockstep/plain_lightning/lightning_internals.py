"""Private names of Lightning that are needed to reload an epoch's batches, and to read what modules log.

tests/options/plain_lightning fails when one of them no longer exists.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from lightning import Trainer
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from torch import nn
from torchmetrics import Metric

from lockstep.plain_lightning.loaders import with_change
from lockstep.trainer.steps import batches_trained

SKIPPED = object()  # output of a training step that all processes skip


class SkippableResult(ClosureResult):
    """A result that may be SKIPPED; Lightning refuses None on several processes, where skipping on one would block the others."""

    @classmethod
    def from_training_step_output(cls, training_step_output: Any, normalize: int = 1) -> "ClosureResult":
        output = None if training_step_output is SKIPPED else training_step_output
        return super().from_training_step_output(output, normalize)


def take_skipped_steps(trainer: Any) -> None:
    trainer.fit_loop.epoch_loop.automatic_optimization.output_result_cls = SkippableResult


def logged_names(trainer: Any) -> set[str]:
    """Return the names logged in training so far, and in the sanity check. `callback_metrics` has them only after the step."""
    loop, names = trainer.fit_loop.epoch_loop, set()
    for results in (loop._results, loop.val_loop._results):
        for item in results.values():
            names.update(results._forked_name(item, True), results._forked_name(item, False))
    return names


def leaves_samplers(trainer: Any) -> bool:
    """Return whether `use_distributed_sampler=False` is set, so that loaders divide their samples themselves."""
    return not trainer._accelerator_connector.use_distributed_sampler


def change_asked_loaders(
    trainer: Any, change: Callable[[str, list[Any]], list[Any]], around: Callable[[], AbstractContextManager[None]]
) -> None:
    """Make the trainer request loaders from a module or a datamodule within `around`, and change these (see `change_loaders`).
    Loaders that user code requests are not changed."""
    evaluations = (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
    for source in (loop._data_source for loop in (trainer.fit_loop, *evaluations)):
        if "dataloader" not in vars(source):
            source.dataloader = _asked(source, partial(change, source.name), around)


def _asked(source: Any, change: Callable[..., Any], around: Callable[[], AbstractContextManager[None]]) -> Callable[[], Any]:
    ask = source.dataloader

    def made() -> Any:
        with around():
            return ask()

    changed = with_change(made, change)
    return lambda: changed() if source.is_module() else ask()


def count_reloads_from(trainer: Any, epoch: int) -> None:
    """Make Lightning count the epochs until the next reload of loaders from this epoch at the latest; it would count from the
    current epoch of a resumed run."""
    training, validation = trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop
    training._last_train_dl_reload_epoch = min(epoch, training._last_train_dl_reload_epoch)
    validation._last_val_dl_reload_epoch = min(epoch, validation._last_val_dl_reload_epoch)


def without_loader_states(checkpoint: dict[str, Any]) -> None:
    """Remove the states of the training loaders, which are those of process 0, and ahead of the batches trained on."""
    checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)


def begin_batches_again(trainer: Trainer, before: Callable[[int], None], are_passed: bool = False) -> None:
    """Reload the epoch's batches from the first one, and skip those that were trained on, unless the loaders have done so.

    The fit loop creates the iterator before it knows the epoch, and uses it for the first epoch after a resumption: data workers
    already load another epoch (Lightning issue 21938), and batches that were trained on are repeated (19764).
    `before` is called with -1 before the first batch, then with the index of each batch that is skipped.
    """
    loop: Any = trainer.fit_loop
    passed = batches_trained(trainer)
    for loader in loop._combined_loader.flattened:
        _set_sampler_epoch(loader, trainer.current_epoch)
    before(-1)
    batches = iter(loop._data_fetcher)
    if trainer.current_epoch == 0:
        before(-1)  # a run's first epoch starts after the first iterator is created
    loaded = getattr(batches, "iterator_wrapper", batches)  # the argument of a step that takes a dataloader_iter
    for batch in range(passed):
        if not are_passed:
            next(loaded, None)
        before(batch)
    batches.fetched = 0  # the epoch loop adds the skipped batches itself


def remember_logs(trainer: Any, model: nn.Module) -> Callable[[], None]:
    """Return a function that restores the epoch's logged values and the model's torchmetrics to their current state."""
    results = trainer._results
    metrics = [(metric, vars(metric) | _copied(metric.metric_state)) for metric in model.modules() if isinstance(metric, Metric)]
    logged = {key: item.metric_state for key, item in results.items()}

    def restore() -> None:
        for metric, before in metrics:
            vars(metric).update(before)
        for key, item in results.items():
            vars(item).update(logged.get(key) or _copied(item._defaults))

    return restore


def _copied(states: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(state) if isinstance(state, list) else state.clone() for name, state in states.items()}


def log_batch_as(trainer: Trainer, samples: int) -> None:
    """Weight this batch's logs by `samples` in the epoch's mean, instead of the batch's length."""
    results: Any = trainer._results
    results.batch_size = samples
