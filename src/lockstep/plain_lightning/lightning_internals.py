"""Private names of Lightning that are needed to load an epoch's batches again, and to see what modules log.

tests/options/plain_lightning fails when one of them is gone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from lightning import Trainer
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from torch import nn
from torchmetrics import Metric

from lockstep.plain_lightning.loaders import with_change
from lockstep.trainer.steps import batches_trained

SKIPPED = object()  # output of a training step that all processes leave out


class SkippableResult(ClosureResult):
    """Lightning refuses None on several processes, in which one that skips a step alone would leave the others waiting."""

    @classmethod
    def from_training_step_output(cls, training_step_output: Any, normalize: int = 1) -> "ClosureResult":
        output = None if training_step_output is SKIPPED else training_step_output
        return super().from_training_step_output(output, normalize)


def take_skipped_steps(trainer: Any) -> None:
    trainer.fit_loop.epoch_loop.automatic_optimization.output_result_cls = SkippableResult


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
    trainer: Any, change: Callable[[str, list[Any]], list[Any]], around: Callable[[str], AbstractContextManager[None]]
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


def count_reloads_from(trainer: Any, epoch: int) -> None:
    """Make Lightning count the epochs until it asks for loaders again from this one at most: it takes those with which a resumed
    run begins for loaders of the present epoch."""
    training, validation = trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop
    training._last_train_dl_reload_epoch = min(epoch, training._last_train_dl_reload_epoch)
    validation._last_val_dl_reload_epoch = min(epoch, validation._last_val_dl_reload_epoch)


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


@contextmanager
def counting_nothing(trainer: Any, model: nn.Module) -> Iterator[None]:
    """Leave out of the epoch's values what a training step logs meanwhile, with whatever batch size, and the updates of the
    model's torchmetrics."""
    log_batch_as(trainer, 0)  # also behind it, in the model's hook at the batch's end
    restore = remember_logs(trainer, model)
    yield
    restore()


def remember_logs(trainer: Any, model: nn.Module) -> Callable[[], None]:
    """Return a function that sets what has been logged in the epoch, and the model's torchmetrics, back to what they are now."""
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
    """Count logs in this batch's step as of so many samples in an epoch's mean; Lightning takes the batch's length."""
    results: Any = trainer._results
    results.batch_size = samples
