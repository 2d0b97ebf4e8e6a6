"""What a run tells its loggers about itself: at the trainer's logging interval, and where it or an epoch begins or ends.

Steps are counted from 0 in a log, by Lightning's metrics too: what a checkpoint of n steps comes after stands before n.
"""

import statistics
import time
from abc import abstractmethod
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lockstep.datamodules.batches import samples_in
from lockstep.errors import config_error
from lockstep.runs.directory import OWN_DIRECTORY
from lockstep.runs.results import samples_trained
from lockstep.runs.shares import dp_rank_and_size
from lockstep.trainer.monitor import Monitor

# Of torch's schedules: what they are made with and never change.
_CONSTANTS = ("base_lrs", "total_steps", "T_max", "T_0", "T_mult", "eta_min", "step_size", "milestones", "gamma")
_CONSTANTS += ("start_factor", "end_factor", "total_iters", "power", "factor", "patience")


def _is_due(trainer: Any, step: int) -> bool:
    """After the first step, at every interval, and after the last step of an epoch or of all: a short run has points too."""
    return step % trainer.log_every_n_steps == 0 or step in (1, trainer.max_steps) or trainer.is_last_batch


def log_metrics(trainer: Trainer, metrics: dict[str, float]) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.global_step - 1)


class _AfterEachStep(Callback):
    """Calls `stepped` when an optimizer has made a step, before a schedule moves its rate on."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hooks = [one.register_step_post_hook(lambda *_, one=one: self.stepped(trainer, one)) for one in trainer.optimizers]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for hook in self._hooks:
            hook.remove()

    @abstractmethod
    def stepped(self, trainer: Trainer, optimizer: Optimizer) -> None:
        """The trainer has not counted this step yet."""


class LearningRate(Monitor, _AfterEachStep):
    """lr, of the first parameter group; lr/1 and so on of others: as the step has used it."""

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


class SteppedRate(_AfterEachStep):
    """For the record of the run: `lr`, the highest rate that the first parameter group has made a step with, and `lr_last`, the
    latest. A run that is continued goes on with the checkpoint's.

    From the first step on, the run's directory is kept, however the run ends.

    Args:
        trained_with: what a run that continues from a checkpoint of this one can't change; see lockstep.runs.continuation.

    Attributes:
        samples_before: how many the checkpoint that this run goes on from was trained on.
    """

    def __init__(self, trained_with: dict[str, Any] | None = None) -> None:
        self.trained_with, self.samples_before = trained_with or {}, 0
        self._highest: float | Tensor | None = None
        self._latest: float | Tensor | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._configured = _constants(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raises ConfigError where a checkpoint has brought a schedule with other constants than the configured one's."""
        for schedule, configured, loaded in zip(
            trainer.lr_scheduler_configs, self._configured, _constants(trainer), strict=False
        ):
            for name in (name for name in configured if configured[name] != loaded[name]):
                kind = type(schedule.scheduler).__name__
                words = (
                    f"its {kind} goes on with {name}={loaded[name]}, here it would have {configured[name]}; accepted is the same"
                )
                raise config_error("ckpt_path", trainer.ckpt_path, f"{words}, or init_from instead of ckpt_path")
        super().on_train_start(trainer, pl_module)

    def stepped(self, trainer: Trainer, optimizer: Optimizer) -> None:
        OWN_DIRECTORY.keep()
        if optimizer is not trainer.optimizers[0]:
            return
        rate = optimizer.param_groups[0]["lr"]
        if isinstance(rate, Tensor):  # the device is not waited for
            rate = rate.detach().clone()
            self._highest = rate if self._highest is None else rate.clamp(min=self._highest)
        else:
            self._highest = rate if self._highest is None else max(rate, self._highest)
        self._latest = rate

    def facts(self) -> dict[str, float | None]:
        rates = {"lr": self._highest, "lr_last": self._latest}
        return {name: None if rate is None else float(rate) for name, rate in rates.items()}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["samples_trained"] = self.samples_before + samples_trained(trainer)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":  # the best checkpoint is loaded for the test, too
            self.samples_before = checkpoint.get("samples_trained", 0)

    def state_dict(self) -> dict[str, Any]:
        return self.facts() | {"trained_with": self.trained_with}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._highest, self._latest = state_dict["lr"], state_dict["lr_last"]


def _constants(trainer: Trainer) -> list[dict[str, Any]]:
    """Of each schedule what it was made with, which a checkpoint's state replaces."""
    made = [vars(config.scheduler) for config in trainer.lr_scheduler_configs]
    return [{name: values[name] for name in _CONSTANTS if name in values} for values in made]


class Throughput(Monitor, Callback):
    """throughput/samples_per_second over all processes where batches show how many samples they have, throughput/step_time
    in seconds, memory/device_gib at most.

    Measured from one logging step to the next within an epoch: validation and checkpoints are not in it. Their median, but for
    the first, which warms up, is seconds_per_step in the run's record.
    """

    def __init__(self) -> None:
        self._step_times: list[float] = []
        self._samples, self._step, self._since = 0, 0, time.perf_counter()

    def _restart(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._samples, self._step, self._since = 0, trainer.global_step, time.perf_counter()

    on_train_start = on_train_epoch_start = on_validation_end = _restart  # a run continued within an epoch does not start one

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._samples += samples_in(batch) or 0
        if not _is_due(trainer, trainer.global_step) or trainer.global_step == self._step:
            return
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
            log_metrics(trainer, {"memory/device_gib": torch.cuda.max_memory_allocated(pl_module.device) / 2**30})
        seconds = time.perf_counter() - self._since
        self._step_times.append(seconds / (trainer.global_step - self._step))
        measured = {"throughput/step_time": self._step_times[-1]}
        if self._samples:
            measured |= self.rates(trainer, pl_module, self._samples * dp_rank_and_size(trainer)[1] / seconds)
        log_metrics(trainer, measured)
        self._restart(trainer, pl_module)

    def rates(self, trainer: Trainer, model: LightningModule, samples_per_second: float) -> dict[str, float]:
        return {"throughput/samples_per_second": samples_per_second}

    def facts(self) -> dict[str, float]:
        return {"seconds_per_step": statistics.median(self._step_times[1:])} if len(self._step_times) > 1 else {}
