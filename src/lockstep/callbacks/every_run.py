"""Callbacks of every run, which do what Lightning omits when a run is resumed or ends early."""

import logging
import time
from abc import abstractmethod
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
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lockstep.console import join_first
from lockstep.errors import config_error
from lockstep.launchers.heartbeat import HEARTBEAT
from lockstep.runs.results import Records, samples_trained
from lockstep.trainer.steps import batches_trained

log = logging.getLogger(__name__)
_LENGTHS = ("total_steps", "total_iters", "T_max")  # attributes of torch's schedules, overwritten by load_state_dict


class AfterEachStep(Callback):
    """Call `stepped` after each optimizer step, before a schedule changes the rate."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hooks = [one.register_step_post_hook(lambda *_, one=one: self.stepped(trainer, one)) for one in trainer.optimizers]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for hook in self._hooks:
            hook.remove()

    @abstractmethod
    def stepped(self, trainer: Trainer, optimizer: Optimizer) -> None:
        """Handle a step of `optimizer`, which `trainer.global_step` does not include yet."""


class SteppedRate(AfterEachStep, Records):
    """Record `lr`, the highest learning rate of the first parameter group in any step, and `lr_last`, the latest one, together
    with the samples and seconds of training before this start of the run."""

    def __init__(self) -> None:
        self._rates: dict[str, float | None] = {"lr": None, "lr_last": None}
        self._before = {"samples_before": 0, "seconds_before": 0.0}
        self._began = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._began = time.monotonic()

    def stepped(self, trainer: Trainer, optimizer: Optimizer) -> None:
        HEARTBEAT.has_stepped = True
        if optimizer is trainer.optimizers[0]:
            rate, highest = float(optimizer.param_groups[0]["lr"]), self._rates["lr"]
            self._rates = {"lr": rate if highest is None else max(rate, highest), "lr_last": rate}

    def facts(self) -> dict[str, float | None]:
        return self._rates | self._before

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["samples_trained"] = self._before["samples_before"] + samples_trained(trainer)
        checkpoint["seconds_trained"] = self._before["seconds_before"] + time.monotonic() - self._began

    def on_load_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            seconds = checkpoint.get("seconds_trained", 0.0) if is_own_checkpoint(trainer) else 0.0
            self._before = {"samples_before": checkpoint.get("samples_trained", 0), "seconds_before": seconds}
        else:  # the best checkpoint, for the test: these callbacks describe the end of the run
            ours = {one.state_key for one in trainer.callbacks if type(one).__module__.startswith(("lockstep.", "lightning."))}
            checkpoint["callbacks"] = {key: state for key, state in checkpoint["callbacks"].items() if key not in ours}
            if "current_model_state" in checkpoint:  # Lightning's WeightAveraging would test these, not the average
                checkpoint["current_model_state"] = checkpoint["state_dict"]

    def state_dict(self) -> dict[str, Any]:
        return self._rates

    def forget(self) -> None:
        """Reset the rates recorded before this run."""
        self._rates = dict.fromkeys(self._rates)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rates = {name: state_dict[name] for name in self._rates}


def is_own_checkpoint(trainer: Trainer) -> bool:
    """Return whether training starts from this run's own checkpoint; a fork starts from another run's."""
    return Path(trainer.ckpt_path or "").is_relative_to(trainer.default_root_dir)


class FirstValidation(Callback):
    """Validate once if `trainer.max_steps` ends a run before its first validation, which Lightning would skip."""

    def __init__(self) -> None:
        self._has_validated = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._has_validated |= not trainer.sanity_checking

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if 0 < trainer.max_steps <= trainer.global_step and not self._has_validated:
            trainer.should_stop = True  # Lightning validates before it stops

    def state_dict(self) -> dict[str, Any]:
        return {"has_validated": self._has_validated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._has_validated = state_dict["has_validated"]


class TrainedParameters(Callback):
    """Save the parameters that were frozen or unfrozen since training started, as `frozen` and `unfrozen` in each checkpoint, and
    restore this in a resumed run. Other parameters are not changed.

    Lightning's BaseFinetuning freezes before each fit, and unfreezes only at the start of an epoch (Lightning issue 21901).
    """

    def __init__(self) -> None:
        self._at_first: set[str] | None = None  # frozen parameters
        self._frozen: set[str] = set()
        self._unfrozen: set[str] = set()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and is_own_checkpoint(trainer):
            self._frozen, self._unfrozen = (set(checkpoint.get(key, ())) for key in ("frozen", "unfrozen"))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._begin(pl_module)  # a run may be resumed within an epoch

    def _begin(self, model: LightningModule) -> None:
        """Freeze and unfreeze as in the checkpoint. This is called after the optimizers were made with the parameters that are
        trained at first, and after the module's `on_train_start`, which may freeze some, but before later hooks."""
        if self._at_first is None:
            self._at_first = (_names_of_frozen(model) | self._unfrozen) - self._frozen
            for names, is_trained in ((self._frozen, False), (self._unfrozen, True)):
                for name in names:
                    model.get_parameter(name).requires_grad_(is_trained)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._at_first is not None:
            now = _names_of_frozen(pl_module)
            checkpoint["frozen"], checkpoint["unfrozen"] = sorted(now - self._at_first), sorted(self._at_first - now)


def _names_of_frozen(model: LightningModule) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


class SchedulesAsBefore(Callback):
    """Raise ConfigError if a resumed run's torch schedule has another length than the checkpoint's. If a function of the step,
    such as `cosine`, has another length, warn that the rate changes."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._configured = [vars(config.scheduler).copy() for config in trainer.lr_scheduler_configs]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        for schedule, configured in zip(schedules, self._configured, strict=False):
            for name in (name for name in _LENGTHS if vars(schedule).get(name) != configured.get(name)):
                words = f"its {type(schedule).__name__} goes on with {name}={vars(schedule)[name]}"
                needs = f"here it would have {configured[name]}; use the same, or a new run, by fork="
                raise config_error("checkpoint", trainer.ckpt_path, f"{words}, {needs}")
            if isinstance(schedule, LambdaLR) and trainer.ckpt_path is not None and is_own_checkpoint(trainer):
                _follow_function(schedule)


def _follow_function(schedule: LambdaLR) -> None:
    """Make the next step with the rate of the configured function. The checkpoint's optimizer has the rate of the earlier
    function, which torch would replace only after a step."""
    for number, group in enumerate(schedule.optimizer.param_groups):
        before = float(group["lr"])
        rate = schedule.base_lrs[number] * schedule.lr_lambdas[number](schedule.last_epoch)
        if rate == schedule._last_lr[number] or before != schedule._last_lr[number]:
            continue  # the function is unchanged, or something else has set the rate
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
        schedule._last_lr[number] = rate
        if number == 0:
            log.warning(f"The schedule has another length: the rate continues at {rate:g}; it would have been {before:g}")


class LightningCallbacks(Callback):
    """Correct callbacks of Lightning that a resumption would restart, or leave without what an epoch's start sets."""

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

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Call the hook of two callbacks that need it within an epoch, and name the others that have it. Weight
        averaging restores its schedule there, and accumulation its number of batches."""
        if not batches_trained(trainer):
            return
        for callback in trainer.callbacks:
            if isinstance(callback, (StochasticWeightAveraging, GradientAccumulationScheduler)):
                callback.on_train_epoch_start(trainer, pl_module)
        kinds = [type(part) for part in (pl_module, *trainer.callbacks)]
        own = [one.__name__ for one in kinds if not one.on_train_epoch_start.__module__.startswith(("lightning.", "lockstep."))]
        if own:
            why = "Lightning calls it before an epoch's first batch; what it sets and no checkpoint holds is missing"
            log.warning(f"on_train_epoch_start of {join_first(own)} is not called for the rest of this epoch: {why}")
