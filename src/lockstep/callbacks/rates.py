"""Log learning rates and throughput after the first step, at the trainer's logging interval, and at the end of an epoch."""

import time
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from lockstep.callbacks.monitor import Monitor
from lockstep.callbacks.stepped_rate import AfterEachStep
from lockstep.datamodules.batches import samples_in
from lockstep.runs.shares import dp_rank_and_size
from lockstep.trainer.steps import log_metrics


def _is_due(trainer: Any, step: int) -> bool:
    every = trainer.log_every_n_steps  # 0 logs no steps
    return bool(every) and (step % every == 0 or step in (1, trainer.max_steps) or trainer.is_last_batch)


class LearningRate(Monitor, AfterEachStep):
    """Log the learning rate that a step was made with: lr of the first parameter group, lr/1 and so on of the others."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def stepped(self, trainer: Trainer, optimizer: Optimizer) -> None:
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
