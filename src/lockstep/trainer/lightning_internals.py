"""Lightning's private names that the core touches, with the reason, and its warnings that are wrong here.

tests/unit/trainer/test_lightning_internals.py and tests/options/plain_lightning fail when a name is gone or no longer needed.
"""

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor, nn
from torchmetrics import Metric

from lockstep.trainer.steps import batches_trained

SKIPPED = object()  # output of a training step that all processes skip
# Importing Lightning sets this, so that asking for GPUs leaves a process that can still be forked. torch's optimizers ask in
# every step, and would load the NVML library each time.
os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
_OF_NOBODY = (  # ignored whatever model and data are
    "(Checkpoint|Experiment logs) directory .* exists and is not empty",  # that is how a run is continued
    "The `srun` command is available on your system but is not used",  # a job of one task is a plain machine to us
    r"`isinstance\(treespec, LeafSpec\)`",  # between Lightning and torch
    "Total length of `list` across ranks is zero",  # a split that is not there is an empty list of loaders
    r"It is recommended to use `self\.log",  # what is logged over an epoch is reduced over the ranks
    "You're resuming from a checkpoint that ended before the epoch ended",  # Lightning asks the loader; here the sampler goes on
    "The '.*_dataloader' does not have many workers",  # data in memory needs none
    "The number of training batches",  # logging less often than once an epoch is a choice
)


def disable_sigterm_handling(trainer: Trainer) -> None:
    """Disable Lightning's SIGTERM handler, which broadcasts inside the handler, and what comes with more than one process: a
    broadcast of a flag and a wait for the device before every batch (lightning/pytorch/loops/training_epoch_loop.py; issue
    21487). lockstep.callbacks.Preemption does both better, and there is no argument to choose. A Lightning that has none of this
    is left as it is."""
    for owner, name in (
        (getattr(trainer, "_signal_connector", None), "register_signal_handlers"),
        (trainer.fit_loop.epoch_loop, "_broadcast_sigterm_tensor"),
    ):
        if hasattr(owner, name):
            setattr(owner, name, lambda *_: None)


def read_logged_step(checkpoint: dict[str, Any]) -> int:
    """Return the step under which the loop logged last, when the checkpoint was saved: it counts steps apart from the
    optimizer's, and that of a batch only after its end."""
    loop = checkpoint["loops"]["fit_loop"]
    batches = loop["epoch_loop.batch_progress"]["total"]
    return loop["epoch_loop.state_dict"]["_batches_that_stepped"] + batches["processed"] - batches["completed"]


def set_logged_step(trainer: Trainer, step: int) -> None:
    """Set the loop's counter of steps, which has no setter. After a resumption the loop counts a step for the validation that it
    does not repeat (on_train_batch_start comes too late to prevent it), and would log all that follows one step further."""
    trainer.fit_loop.epoch_loop._batches_that_stepped = step


def end_restart(trainer: Trainer) -> None:
    """Clear the fit loop's restart flag, for which it leaves out a plateau schedule's step at the end of the epoch, as if the
    checkpoint were from after it. The public `restarting` would set the loops below it too."""
    trainer.fit_loop._restarting = False


def add_to_logged(module: LightningModule, values: Mapping[str, Tensor], samples: Any, kind: torch.dtype) -> bool:
    """Add a batch's values, means () or numbers (samples,), to what `self.log` has of them in this epoch, as it would, in a small
    part of the time: three calls of it take as long as a small model's step. Return False for what it must be given: first
    values, and a number of samples that is on the device."""
    results: Any = module._trainer and module._trainer._results
    if not results or not isinstance(samples, int):
        return False
    loader = "" if results.dataloader_idx is None else f".{results.dataloader_idx}"
    items: list[Any] = [results.get(f"{module._current_fx_name}.{name}{loader}") for name in values]
    if any(item is None or item.has_reset for item in items):
        return False
    number = items[0].cumulated_batch_size + samples  # not in place: what is left out is set back
    for item, value in zip(items, values.values(), strict=True):
        fields = vars(item)  # nn.Module.__setattr__ looks for parameters, buffers and modules first
        total = fields["value"].to(kind)  # a value that has been set back has Lightning's type
        added = total + value.sum(dtype=kind) if value.ndim else torch.add(total, value, alpha=samples)
        fields |= {"value": added, "cumulated_batch_size": number, "_computed": None}
    return True


def is_attached(module: LightningModule) -> bool:
    """Return whether it has a trainer. The public `trainer` raises if not, as when a checkpoint is loaded without one."""
    return module._trainer is not None


def drop_commentary() -> None:
    """Keep the warnings of Lightning's loggers, and drop the rest; importing it has set their level. Ignore warnings that are
    about nothing that a user has written."""
    for message in _OF_NOBODY:
        warnings.filterwarnings("ignore", message=message)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


class SavesUncountedSteps(ModelCheckpoint):
    """ModelCheckpoint that also saves if the module steps optimizers by hand that Lightning does not wrap. Lightning counts no
    such steps, and saves once at a step."""

    def _should_skip_saving_checkpoint(self, trainer: Trainer) -> bool:
        if not trainer.global_step:
            self._last_global_step_saved = -1
        return super()._should_skip_saving_checkpoint(trainer)


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


def with_change(make: Callable[..., Any], change: Callable[[list[Any]], list[Any]]) -> Any:
    @wraps(make)
    def changed(*arguments: Any) -> Any:
        made = make(*arguments)
        loaders = made if isinstance(made, CombinedLoader) else CombinedLoader(made)
        loaders.flattened = change(loaders.flattened)
        return made if made is loaders else loaders.iterables

    return changed


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
