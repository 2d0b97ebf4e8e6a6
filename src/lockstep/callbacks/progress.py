"""Progress of a run, on the terminal and in a file."""

import logging
import sys
import time
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar

from lockstep.atomic_files import write_json
from lockstep.callbacks.monitor import Monitor
from lockstep.runs.results import logged_numbers, steps_made

log = logging.getLogger(__name__)
INTERVAL = 10.0  # seconds between two writes of progress.json


class Progress(Monitor, TQDMProgressBar):
    """Show a bar on a terminal, log a line per epoch, and write all metrics to progress.json in the run's directory.

    Bar and line show metrics logged with `prog_bar=True`, and those that checkpoints monitor; all metrics if there are none.

    Args:
        refresh_rate: batches between two updates of the bar; each update waits for the device.
    """

    def __init__(self, refresh_rate: int = 10) -> None:
        super().__init__(refresh_rate=refresh_rate if sys.stdout.isatty() else 0)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule | None = None) -> dict[str, Any]:
        return _texts(trainer) if self.is_enabled else {}

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().on_train_start(trainer, *_)
        self._due = time.monotonic()
        self._first: tuple[float, float] | None = None  # time of the first batch's end, and the part of training done then
        self._logged, self._metrics = trainer.current_epoch, dict[str, float]()

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        self._log_epoch(trainer)
        super().on_train_epoch_start(trainer, *_)
        self.train_progress_bar.set_description(f"epoch {trainer.current_epoch + 1}{_end(trainer)}")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if time.monotonic() >= self._due and trainer.is_global_zero:
            self._write(trainer, batch_idx + 1)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._log_epoch(trainer)
        super().on_train_end(trainer, *_)

    def _log_epoch(self, trainer: Trainer) -> None:
        """Log the epoch that has ended; in on_train_epoch_end the model's own hook would not have run yet."""
        if not trainer.is_global_zero or trainer.current_epoch == self._logged:
            return
        self._logged, self._metrics = trainer.current_epoch, logged_numbers(trainer)
        self._write(trainer, 0)
        if self.is_enabled:
            self.train_progress_bar.clear()
        metrics = [f"{name} {value}" for name, value in sorted(_texts(trainer).items())]
        log.info("  ".join([f"epoch {trainer.current_epoch}{_end(trainer)}", f"step {steps_made(trainer)}", *metrics]))

    def _write(self, trainer: Trainer, batches: int) -> None:
        """Write progress.json, `batches` after the start of an epoch, without reading values from the device."""
        now, share, left = time.monotonic(), _share(trainer, batches), None
        self._due = now + INTERVAL
        if share is not None:
            began, first = self._first = self._first or (now, share)
            left = (now - began) * (1 - share) / (share - first) if share > first else None  # at the pace so far
        content = {"epoch": trainer.current_epoch, "epochs": trainer.max_epochs, "step": steps_made(trainer)}
        content |= {"metrics": self._metrics, "share": share, "seconds_left": left}
        write_json(Path(trainer.default_root_dir) / "progress.json", content)


def _end(trainer: Trainer) -> str:
    return f"/{trainer.max_epochs}" if trainer.max_epochs and trainer.max_epochs > 0 else ""


def _texts(trainer: Any) -> dict[str, str]:
    names = {*trainer.progress_bar_metrics}
    names |= {getattr(saver, "monitor", None) for saver in trainer.checkpoint_callbacks} if names else set()
    return {name: f"{value:.4g}" for name, value in logged_numbers(trainer).items() if name in names or not names}


def _share(trainer: Any, batches: int) -> float | None:
    """Return the part of training done, from 0 to 1, `batches` after the start of an epoch; None if training has no end."""
    shares = [trainer.global_step / trainer.max_steps] if trainer.max_steps > 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        shares.append((trainer.current_epoch + batches / max(1, trainer.num_training_batches)) / trainer.max_epochs)
    return min(1.0, max(shares)) if shares else None
