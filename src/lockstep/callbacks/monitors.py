"""Callbacks that only observe training, and their base class: an error in one of them never ends a run."""

import functools
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics.classification import MulticlassConfusionMatrix

from lockstep.atomic_files import write_json
from lockstep.datamodules.batches import samples_in
from lockstep.errors import ConfigError
from lockstep.models import Classifier
from lockstep.plain_lightning.processes import all_ranks
from lockstep.runs.results import logged_numbers, steps_made
from lockstep.runs.shares import dp_rank_and_size, is_first_of_share
from lockstep.trainer.steps import log_metrics

log = logging.getLogger(__name__)
INTERVAL = 10.0  # seconds between two writes of progress.json
NAMED = 20  # classes up to which the confusion matrix shows their names and numbers
_WATCHED = ("setup", "teardown", "load_state_dict")  # in addition to the hooks, whose names begin with on_
_WATCHED_TO_THE_END = ("facts", "state_dict")  # still called after a monitor was switched off


class Monitor:
    """Base class, to be listed first, of a callback that observes training without changing it.

    When one of its hooks raises, the error is logged in one line and the callback is switched off for the rest of the run. Only a
    ConfigError ends the run.
    """

    is_off = False

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name in dir(cls):
            method = getattr(cls, name)
            if method is getattr(Callback, name, None) or hasattr(method, "is_watched"):
                continue
            if name.startswith("on_") or name in (*_WATCHED, *_WATCHED_TO_THE_END):
                setattr(cls, name, watched(method, to_the_end=name in _WATCHED_TO_THE_END))

    def release(self) -> None:
        """Remove what the monitor has registered elsewhere; called when it is switched off."""

    def gather(self, make: Callable[[], Any]) -> list[Any]:
        """Return `make()` of each rank; a collective, in hooks `watched_to_the_end`. Raise RuntimeError if a rank's is off."""
        ranks = all_ranks(None if self.is_off else make())
        if any(rank is None for rank in ranks):
            raise RuntimeError("it is off on another rank")
        return ranks


def watched(method: Callable[..., Any], to_the_end: bool = False) -> Callable[..., Any]:
    """Wrap a method of a Monitor, so that an error in it switches the monitor off. `to_the_end`: call it even after that."""

    @functools.wraps(method)
    def call(self: Monitor, *arguments: Any, **named: Any) -> Any:
        if self.is_off and not to_the_end:
            return None
        try:
            return method(self, *arguments, **named)
        except ConfigError:
            raise
        except Exception as error:
            if not self.is_off:
                self.is_off = True
                reason = " ".join(f"{method.__name__}: {type(error).__name__}: {error}".split())
                log.warning(f"{type(self).__name__} is switched off for the rest of the run: {reason}")
                with suppress(Exception):
                    self.release()

    call.is_watched = True  # pyright: ignore[reportAttributeAccessIssue]
    return call


watched_to_the_end = functools.partial(watched, to_the_end=True)  # for a collective, in which other ranks would wait


def _is_due(trainer: Any, step: int) -> bool:
    every = trainer.log_every_n_steps  # 0 logs no steps
    return every > 0 and (step % every == 0 or step in (1, trainer.max_steps) or trainer.is_last_batch)


class LearningRate(Monitor, Callback):
    """Log the learning rate that a step was made with: lr of the first parameter group, lr/1 and so on of the others."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if _is_due(trainer, trainer.global_step + 1):
            groups = [group for one in trainer.optimizers for group in one.param_groups]
            self._rates = {f"lr/{i}" if i else "lr": float(group["lr"]) for i, group in enumerate(groups)}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._rates:
            log_metrics(trainer, self._rates)
            self._rates = {}


class Throughput(Monitor, Callback):
    """Log throughput/step_time in seconds, throughput/samples_per_second over all processes, and memory/device_gib, the peak.

    They are measured between logging steps within an epoch, without validation and checkpoints. The run's record has the speed of
    the whole training, which includes these.
    """

    def _restart(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._samples, self._step, self._since = 0, trainer.global_step, time.perf_counter()

    on_train_start = on_train_epoch_start = on_validation_end = _restart  # a run resumed within an epoch does not start one

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._samples += samples_in(batch) or 0
        step = trainer.global_step
        if not _is_due(trainer, step) or step == self._step:
            return
        measured = dict[str, float]()
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
            measured["memory/device_gib"] = torch.cuda.max_memory_allocated(pl_module.device) / 2**30
        seconds = time.perf_counter() - self._since
        measured["throughput/step_time"] = seconds / (step - self._step)
        if self._samples:
            measured["throughput/samples_per_second"] = self._samples * dp_rank_and_size(trainer)[1] / seconds
        log_metrics(trainer, measured)
        self._restart(trainer, pl_module)


class Progress(Monitor, TQDMProgressBar):
    """Show a bar on a terminal, log a line per epoch, and write all metrics to progress.json in the run's directory.

    Bar and line show metrics logged with `prog_bar=True`, and those that checkpoints monitor; all metrics if there are none.

    Args:
        refresh_rate: batches between two updates of the bar; each update waits for the device.
    """

    def __init__(self, refresh_rate: int = 10) -> None:
        super().__init__(refresh_rate=refresh_rate if sys.stdout.isatty() else 0)
        self._logged = sys.maxsize  # epochs; none is logged before training has started

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

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._log_epoch(trainer)  # a run that is asked to stop at an epoch's end begins no other

    def _log_epoch(self, trainer: Trainer) -> None:
        """Log the epoch that has ended; in on_train_epoch_end the model's own hook would not have run yet."""
        if not trainer.is_global_zero or trainer.current_epoch <= self._logged:
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


class Pictures(Monitor, Callback):
    """Log the confusion matrix of all processes' samples as test/confusion; rows are the true classes."""

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, Classifier):
            self._matrix = MulticlassConfusionMatrix(pl_module.spec.num_outputs, sync_on_compute=False).to(pl_module.device)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if isinstance(pl_module, Classifier) and isinstance(outputs, Tensor) and is_first_of_share(trainer):
            self._matrix.update(outputs, batch[1])

    @watched_to_the_end
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(pl_module, Classifier):
            return
        counts: Any = sum(self.gather(lambda: self._matrix.confmat.cpu()))
        writer = next((logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)), None)
        if trainer.is_global_zero and writer is not None and counts.any():
            axes = Figure(figsize=(7, 7), dpi=70).add_axes((0.18, 0.14, 0.8, 0.84))  # a layout takes as long as all else
            names = [str(name) for name in pl_module.spec.class_names or range(len(counts))] if len(counts) <= NAMED else None
            figure, _ = self._matrix.plot(counts, axes, add_text=names is not None, labels=names, cmap="Blues")
            writer.add_figure("test/confusion", figure, trainer.global_step)
