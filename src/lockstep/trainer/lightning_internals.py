"""Lightning's private names that the core touches, with the reason, and its warnings that are wrong here.

tests/unit/trainer/test_lightning_internals.py fails when one of the names is gone or no longer needed.
"""

import logging
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

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
    """Add a training step's values, means () or numbers (samples,), to what `self.log` has of train/NAME in this epoch, as it
    would, in a small part of the time: three calls of it take as long as a small model's step. Return False for first values,
    which it must be given."""
    results: Any = module._trainer and module._trainer._results
    items: list[Any] = [results.get(f"training_step.train/{name}") for name in values] if results else [None]
    if any(item is None or item.has_reset for item in items):
        return False
    for item, value in zip(items, values.values(), strict=True):
        fields = vars(item)  # nn.Module.__setattr__ looks for parameters, buffers and modules first
        fields["value"] = fields["value"] + (value.sum(dtype=kind) if value.ndim else value.to(kind) * samples)
        fields["cumulated_batch_size"] = fields["cumulated_batch_size"] + samples  # not in place: what is left out is set back
        fields["_computed"] = None
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
