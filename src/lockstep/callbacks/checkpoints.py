"""The two checkpoints of a run: last.ckpt, from which a run is resumed exactly, and best.ckpt."""

import logging
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from lockstep.datamodules.base import DataModule
from lockstep.errors import check_at_least
from lockstep.runs.results import logged_numbers, steps_made
from lockstep.trainer.lightning_internals import SavesUncountedSteps, end_restart, read_logged_step, set_logged_step
from lockstep.trainer.steps import batches_trained, begins_step

log = logging.getLogger(__name__)


class LastCheckpoint(Checkpoint):
    """Save dirpath/last.ckpt, the state to resume from, and keep the one before it as previous.ckpt.

    Save when training ends, and between two steps: after any validation or end of epoch that is due, before any hook of the next
    step (see SavesFirst). This makes resuming exact. Lightning's ModelCheckpoint saves before a validation that is due, which a
    resumed run then skips, and its save_last writes only with a best checkpoint (Lightning issue 18931).
    """

    def __init__(self, dirpath: str, every_n_epochs: int | None = 1, every_n_steps: int | None = None) -> None:
        check_at_least(1, every_n_epochs=every_n_epochs, every_n_steps=every_n_steps)
        self.path = Path(dirpath) / "last.ckpt"
        self.every_n_epochs, self.every_n_steps = every_n_epochs, every_n_steps
        self._saved_at: tuple[int, int] | None = None  # epoch and step
        self._is_saving = False
        self._logged_step: int | None = None  # Lightning's logging step in the loaded checkpoint

    def save(self, trainer: Trainer) -> None:
        """Save unless this step is saved already. Call this on every rank, at a step boundary."""
        now = (trainer.current_epoch, steps_made(trainer))
        if now == self._saved_at:
            return
        for logger in trainer.loggers:
            logger.save()  # because a resumed run does not repeat logs from before the checkpoint
        self._is_saving = True
        try:
            trainer.save_checkpoint(self.path, storage_options={"keep_as": "previous.ckpt"})
        finally:
            self._is_saving = False
        self._saved_at = now

    def save_if_due(self, trainer: Trainer, batch_idx: int) -> None:
        """Save if a checkpoint is due; called before each batch."""
        if begins_step(trainer, batch_idx) and self._is_due(steps_made(trainer), trainer.current_epoch, batch_idx):
            self.save(trainer)

    def _is_due(self, step: int, epoch: int, batch_idx: int) -> bool:
        if self.every_n_steps is not None and step and step % self.every_n_steps == 0:
            return True
        return self.every_n_epochs is not None and step > 0 and batch_idx == 0 and epoch % self.every_n_epochs == 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at = (trainer.current_epoch, steps_made(trainer))
        if not batches_trained(trainer):  # no batch to resume after, so clear Lightning's restart flag
            trainer.fit_loop.epoch_loop.restarting = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._logged_step is not None:
            set_logged_step(trainer, self._logged_step)
            self._logged_step = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        end_restart(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        progress = trainer.fit_loop.epoch_loop.batch_progress
        if not progress.is_last_batch:  # max_time, max_steps or a callback has ended the epoch
            where = f"within epoch {trainer.current_epoch}, after {progress.current.completed} of its batches"
            log.info(f"Training has ended {where}: a run that goes on from here leaves out the others.")
        self.save(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._is_saving:
            rewind_progress(checkpoint["loops"]["fit_loop"], batches_trained(trainer) > 0)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._logged_step = read_logged_step(checkpoint)
        datamodule: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(datamodule, DataModule):
            _rescale_progress(checkpoint, datamodule.samples_per_batch)


class SavesFirst(Callback):
    """Call LastCheckpoint before all other callbacks; Lightning calls every Checkpoint last. A resumed run repeats the hooks at
    the start of its epoch and batch, so a checkpoint must not contain their changes."""

    def __init__(self, saver: LastCheckpoint) -> None:
        self.saver = saver

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.saver.save_if_due(trainer, 0)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.saver.save_if_due(trainer, batch_idx)


def find_last_checkpoint(trainer: Any) -> LastCheckpoint | None:
    """Return the trainer's LastCheckpoint, or None."""
    return next((callback for callback in trainer.callbacks if isinstance(callback, LastCheckpoint)), None)


def rewind_progress(loop: dict[str, Any], within: bool) -> None:
    """Uncount a batch that is ready but not started, and the epoch too if no batch of it was trained on (not `within`)."""
    batches, epochs = loop["epoch_loop.batch_progress"], loop["epoch_progress"]
    for counters in (batches, *([] if within else [epochs])):
        for counter in (counters["total"], counters["current"]):
            counter |= dict.fromkeys(counter, counter["completed"])
    if not within:
        batches["current"] |= dict.fromkeys(batches["current"], 0)
    batches["is_last_batch"] = False


def _rescale_progress(checkpoint: dict[str, Any], now: int) -> None:
    """Convert the counts of batches to batches of `now` samples, since a run may accumulate another number of them."""
    before, *others = checkpoint.get("samples_per_batch") or [None]
    batches = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    if others or before in (None, now) or batches["current"]["processed"] * before % now:
        return  # unknown or the same, or a position within a batch, which the shared sampler refuses
    is_ending = batches["total"]["processed"] > batches["total"]["completed"]  # Lightning completes such a batch when it resumes
    for counters in (batches["total"], batches["current"]):
        counters |= {name: value * before // now for name, value in counters.items()}
        counters["completed"] = counters["processed"] - is_ending
    checkpoint["samples_per_batch"] = [now]


class BestCheckpoint(SavesUncountedSteps):
    """Lightning's ModelCheckpoint, which saves the logged metrics, too. It finds its files after the run's directory was moved,
    and in a fork it ignores those of the source run."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.monitor is not None:
            log.info(f"{self.filename}.ckpt is chosen by the {'highest' if self.mode == 'max' else 'lowest'} {self.monitor}.")

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Prefer the last of equal values. On a small validation set, rounding decides which epoch is the first to reach one."""
        is_equal = current is not None and bool(current == self.best_k_models.get(self.kth_best_model_path))
        return super().check_monitor_top_k(trainer, current) or is_equal

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint.setdefault("metrics", logged_numbers(trainer))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state: dict[str, Any] = {}
        for name, value in state_dict.items():
            state[name] = self._here(value) if name.endswith("_model_path") else value
        if Path(state["best_model_path"]).is_file():
            state["best_k_models"] = {self._here(path): score for path, score in state["best_k_models"].items()}
            super().load_state_dict(state | {"dirpath": self.dirpath})
            self.current_score = state["current_score"]

    def _here(self, path: str) -> str:
        return str(Path(self.dirpath or "") / Path(path).name) if path else path
