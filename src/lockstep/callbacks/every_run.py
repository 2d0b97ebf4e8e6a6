"""Callbacks of every run, which do what Lightning omits when a run is resumed or ends early."""

import logging
import time
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lockstep.console import join_first
from lockstep.errors import config_error
from lockstep.launchers.heartbeat import HEARTBEAT
from lockstep.runs.results import Records, samples_trained, steps_made
from lockstep.trainer.steps import batches_trained

log = logging.getLogger(__name__)
_LENGTHS = ("total_steps", "total_iters", "T_max")  # attributes of torch's schedules, overwritten by load_state_dict


def is_own_checkpoint(trainer: Trainer) -> bool:
    """Return whether training starts from this run's own checkpoint; a fork starts from another run's."""
    return Path(trainer.ckpt_path or "").is_relative_to(trainer.default_root_dir)


class SteppedRate(Records):
    """Record `lr`, the highest learning rate of the first parameter group in any step, together with the samples and seconds of
    training before this start of the run."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._before: dict[str, float] = {"samples_before": 0, "seconds_before": 0.0}
        self._began = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = time.monotonic()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if optimizer is trainer.optimizers[0]:
            self._rate = max(float(optimizer.param_groups[0]["lr"]), self._rate or 0.0)

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        HEARTBEAT.has_stepped = HEARTBEAT.has_stepped or steps_made(trainer) > 0

    def facts(self) -> dict[str, float | None]:
        return {"lr": self._rate, **self._before}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["samples_trained"] = self._before["samples_before"] + samples_trained(trainer)
        checkpoint["seconds_trained"] = self._before["seconds_before"] + time.monotonic() - self._began

    def on_load_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        states = checkpoint.get("callbacks", {})
        if trainer.state.fn == "fit":
            self._before["samples_before"] = checkpoint.get("samples_trained", 0)
            if is_own_checkpoint(trainer):
                self._before["seconds_before"] = checkpoint.get("seconds_trained", 0.0)
            else:  # a fork has taken its own time and rates alone
                states.pop(self.state_key, None)
            return
        for callback in trainer.callbacks:  # the best checkpoint, for the test: these callbacks describe the end of the run
            if type(callback).__module__.startswith(("lockstep.", "lightning.")):
                states.pop(callback.state_key, None)
        if "current_model_state" in checkpoint:  # Lightning's WeightAveraging would test these, not the average
            checkpoint["current_model_state"] = checkpoint["state_dict"]

    def state_dict(self) -> dict[str, Any]:
        return {"lr": self._rate}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rate = state_dict["lr"]


class FirstValidation(Callback):
    """Validate once if `trainer.max_steps` ends a run before its first validation, which Lightning would skip."""

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if 0 < trainer.max_steps <= trainer.global_step:
            is_early = trainer.current_epoch < (trainer.check_val_every_n_epoch or 1)
            if is_early and not trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.ready:
                trainer.should_stop = True  # Lightning validates before it stops


class TrainedParameters(Callback):
    """Save which parameters were frozen or unfrozen since training started, as `requires_grad` in each checkpoint, and restore
    this in a resumed run. Other parameters are not changed.

    Lightning's BaseFinetuning freezes before each fit, and unfreezes only at the start of an epoch (Lightning issue 21901).
    """

    def __init__(self) -> None:
        self._at_first: dict[str, bool] | None = None
        self._changed: dict[str, bool] = {}  # in the checkpoint

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and is_own_checkpoint(trainer):
            self._changed = checkpoint.get("requires_grad", {})

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._begin(pl_module)  # a run may be resumed within an epoch

    def _begin(self, model: LightningModule) -> None:
        """Freeze and unfreeze as in the checkpoint. This is called after the optimizers were made with the parameters that are
        trained at first, and after the module's `on_train_start`, which may freeze some, but before later hooks."""
        if self._at_first is None:
            self._at_first = _requires_grad(model) | {name: not is_trained for name, is_trained in self._changed.items()}
            for name, is_trained in self._changed.items():
                model.get_parameter(name).requires_grad_(is_trained)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if (first := self._at_first) is not None:
            now = _requires_grad(pl_module).items()
            checkpoint["requires_grad"] = {
                name: is_trained for name, is_trained in now if is_trained != first.get(name, is_trained)
            }


def _requires_grad(model: LightningModule) -> dict[str, bool]:
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


class Resumption(Callback):
    """Check that a resumed run's schedules are as long as the checkpoint's, and correct callbacks of Lightning that a resumption
    would restart, or leave without what an epoch's start sets."""

    def on_load_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit":
            return
        for callback in trainer.callbacks:
            if type(callback).load_state_dict is EarlyStopping.load_state_dict:  # it would restore the earlier patience
                checkpoint["callbacks"].get(callback.state_key, {})["patience"] = callback.patience
        # when training starts, these load a checkpoint of their own in place of the run's
        once = (BatchSizeFinder.on_fit_start, LearningRateFinder.on_fit_start)
        finders = [one for one in trainer.callbacks if type(one).on_fit_start in once]
        trainer.callbacks = [one for one in trainer.callbacks if one not in finders]
        if finders and checkpoint["global_step"]:
            names = join_first([type(one).__name__ for one in finders])
            log.warning(f"{names}: a run that goes on has the rate of its checkpoint, and the batch size of its config")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._configured = [vars(config.scheduler).copy() for config in trainer.lr_scheduler_configs]

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        for config, configured in zip(trainer.lr_scheduler_configs, self._configured, strict=False):
            _check_length(config.scheduler, configured, trainer)
        if batches_trained(trainer):
            _start_epoch(trainer, pl_module)


def _check_length(schedule: Any, configured: dict[str, Any], trainer: Any) -> None:
    """Raise ConfigError if torch's schedule has another length than configured. If a function of the step, such as `cosine`, has
    another length, warn that the rate changes."""
    for name in (name for name in _LENGTHS if vars(schedule).get(name) != configured.get(name)):
        words = f"its {type(schedule).__name__} goes on with {name}={vars(schedule)[name]}"
        needs = f"here it would have {configured[name]}; use the same, or a new run, by fork="
        raise config_error("checkpoint", trainer.ckpt_path, f"{words}, {needs}")
    if isinstance(schedule, LambdaLR) and trainer.ckpt_path is not None and is_own_checkpoint(trainer):
        _follow_function(schedule)


def _follow_function(schedule: LambdaLR) -> None:
    """Make the next step with the rate of the configured function. The checkpoint's optimizer has the rate of the earlier
    function, which torch would replace only after a step."""
    functions = zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    rates = [float(base * function(schedule.last_epoch)) for base, function in functions]
    before = [float(group["lr"]) for group in schedule.optimizer.param_groups]
    if rates == before or before != [*map(float, schedule.get_last_lr())]:
        return  # the function is unchanged, or something else has set the rate
    schedule.last_epoch -= 1
    schedule.step()
    log.warning(f"The schedule's length has changed: the learning rate continues at {rates[0]:g}, not at {before[0]:g}")


def _start_epoch(trainer: Any, model: LightningModule) -> None:
    """Call the hook of two callbacks that need it within an epoch, and name the others that have it. Weight averaging restores
    its schedule there, and accumulation its number of batches."""
    for callback in trainer.callbacks:
        if isinstance(callback, (StochasticWeightAveraging, GradientAccumulationScheduler)):
            callback.on_train_epoch_start(trainer, model)
    kinds = [type(part) for part in (model, *trainer.callbacks)]
    own = [one.__name__ for one in kinds if not one.on_train_epoch_start.__module__.startswith(("lightning.", "lockstep."))]
    if own:
        why = "Lightning calls it before an epoch's first batch; what it sets and no checkpoint holds is missing"
        log.warning(f"on_train_epoch_start of {join_first(own)} is not called for the rest of this epoch: {why}")
