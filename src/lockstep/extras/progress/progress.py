"""How far a run is, for a person."""

import itertools
import logging
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

from lockstep.atomic_files import write_json
from lockstep.extras.monitors.monitor import Monitor
from lockstep.runs.results import accountant, logged_numbers
from lockstep.runs.shares import dp_rank_and_size

log = logging.getLogger(__name__)
PROGRESS = "progress.json"
INTERVAL = 10.0  # seconds at most between two notes of how far a run is; it begins with shorter ones
_LEFT_FREE = 10  # columns for the bar itself, and for a rate and a time that become longer
REDRAWN = 0.5  # seconds after which a bar is drawn again, however few batches have passed


class Progress(Monitor, TQDMProgressBar):
    """A bar on a terminal, and a line per epoch everywhere.

    The bar is redrawn every half second; every `refresh_rate` batches, and at the end of an epoch, with the metrics that are
    logged anyway. So no batch waits for the device on its account.
    """

    def __init__(self, refresh_rate: int = 50) -> None:
        super().__init__(refresh_rate=refresh_rate if sys.stdout.isatty() else 0)
        self._drawn = 0.0  # when a bar was drawn last

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule | None = None) -> dict[str, Any]:
        """Returns those that fit beside the bar, each whole; what a checkpoint is chosen by comes first."""
        if not self.is_enabled:
            return {}
        monitored = {getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks}
        texts = sorted(_texts(trainer).items(), key=lambda item: item[0] not in monitored)
        widths = itertools.accumulate(len(f", {name}={text}") for name, text in texts)
        room = _room(self.train_progress_bar)
        return {name: text for (name, text), width in zip(texts, widths, strict=True) if width <= room}

    def _redraw(self, bar: Tqdm, batches: int) -> None:
        """Draws the bar again with the metrics that it shows: to read new ones may mean to wait for the device."""
        if self.is_enabled and time.monotonic() - self._drawn > REDRAWN:
            bar.n, self._drawn = batches, time.monotonic()
            bar.refresh()

    def on_train_start(self, *arguments: Any) -> None:
        super().on_train_start(*arguments)
        trainer: Trainer = arguments[0]
        self._began = self._due = time.monotonic()
        self._first: tuple[float, float] | None = None  # when a batch ended first, and the share of training done then
        self._first_epoch = self._logged = trainer.current_epoch
        self._noted: dict[str, Any] = {"epoch": trainer.current_epoch, "epochs": trainer.max_epochs, "metrics": {}}

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        self._log_epoch(trainer)
        super().on_train_epoch_start(trainer, *_)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.is_enabled:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            self._redraw(self.train_progress_bar, batch_idx + 1)
        if time.monotonic() >= self._due and trainer.is_global_zero:
            self._write(trainer, batch_idx + 1)

    def on_validation_batch_end(self, trainer: Trainer, *arguments: Any, **options: Any) -> None:
        super().on_validation_batch_end(trainer, *arguments, **options)
        self._redraw(self.val_progress_bar, arguments[3] + 1)

    def on_test_batch_end(self, trainer: Trainer, *arguments: Any, **options: Any) -> None:
        super().on_test_batch_end(trainer, *arguments, **options)
        self._redraw(self.test_progress_bar, arguments[3] + 1)

    def on_train_end(self, *arguments: Any) -> None:
        self._log_epoch(arguments[0])
        super().on_train_end(*arguments)

    def _log_epoch(self, trainer: Trainer) -> None:
        """Logs the epoch that has ended; later than on_train_epoch_end, which comes before the model's own."""
        if not trainer.is_global_zero or trainer.current_epoch == self._logged:
            return
        self._logged = trainer.current_epoch
        if self.is_enabled:
            self.train_progress_bar.clear()
        self._record(trainer)
        end = f"/{trainer.max_epochs}" if trainer.max_epochs and trainer.max_epochs > 0 else ""
        metrics = (f"{name} {value}" for name, value in sorted(_texts(trainer).items()))
        cells = [f"epoch {trainer.current_epoch}{end}", f"step {trainer.global_step}", *metrics]
        log.info("  ".join(cells), extra={"cells": cells})

    def _record(self, trainer: Trainer) -> None:
        """Records the epoch that has ended."""
        seconds = time.monotonic() - self._began
        samples = getattr(accountant(trainer), "samples_trained", 0) * dp_rank_and_size(trainer)[1]
        self._noted |= {
            "epoch": trainer.current_epoch,
            "metrics": logged_numbers(trainer),
            "samples_per_second": samples / seconds,
            "seconds_per_epoch": seconds / max(1, trainer.current_epoch - self._first_epoch),
        }
        self._write(trainer)

    def _write(self, trainer: Trainer, batches: int = 0) -> None:
        """Writes progress.json in the run's directory, for whoever watches: the latest epoch, and `batches` later the step, the
        share of training that is done, and the seconds that the rest takes at the pace so far. Reads no value from the device."""
        now, share, left = time.monotonic(), _share(trainer, batches), None
        self._due = now + min(INTERVAL, max(1.0, now - self._began))
        if share is not None:
            began, first = self._first = self._first or (now, share)
            left = (now - began) * (1 - share) / (share - first) if share > first else None
        content = self._noted | {"step": trainer.global_step, "share": share, "seconds_left": left}
        with suppress(OSError):  # a full disk, say: no reason to stop training
            write_json(Path(trainer.default_root_dir) / PROGRESS, content)


def _texts(trainer: Trainer) -> dict[str, str]:
    return {name: f"{value:.4g}" for name, value in logged_numbers(trainer).items()}


def _room(bar: Tqdm) -> int:
    """Returns how many columns of the terminal are left for metrics when all batches are done."""
    state: Any = bar.format_dict | {"n": bar.total or bar.n, "ncols": None, "postfix": None, "bar_format": "{l_bar}{r_bar}"}
    return (bar.format_dict["ncols"] or 80) - len(Tqdm.format_meter(**state)) - _LEFT_FREE


def _share(trainer: Any, batches: int) -> float | None:
    """Returns the share of training done, from 0 to 1, `batches` after its latest epoch; None where nobody knows its end."""
    shares = [trainer.global_step / trainer.max_steps] if trainer.max_steps > 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        shares.append((trainer.current_epoch + batches / max(1, trainer.num_training_batches)) / trainer.max_epochs)
    return min(1.0, max(shares)) if shares else None
