"""Callbacks of every run, which do what Lightning omits when a run ends early or is resumed."""

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
        """Handle a step that the trainer has not counted yet."""


class SteppedRate(AfterEachStep, Records):
    """Record `lr`, the highest rate of the first parameter group in any step, and `lr_last`, the latest. A resumed run continues
    the values of its checkpoint.

    Attributes:
        samples_before: number of samples trained on in the checkpoint from which this run is resumed.
        seconds_before: duration of training in this run's earlier starts.
    """

    def __init__(self) -> None:
        self.samples_before, self.seconds_before = 0, 0.0
        self._began = time.monotonic()
        self._highest: float | Tensor | None = None
        self._latest: float | Tensor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._began = time.monotonic()

    def stepped(self, trainer: Trainer, optimizer: Optimizer) -> None:
        HEARTBEAT.has_stepped = True
        if optimizer is not trainer.optimizers[0]:
            return
        rate = optimizer.param_groups[0]["lr"]
        if isinstance(rate, Tensor):  # read later, so as not to wait for the device
            rate = rate.detach().clone()
            self._highest = rate if self._highest is None else rate.clamp(min=self._highest)
        else:
            self._highest = rate if self._highest is None else max(rate, self._highest)
        self._latest = rate

    def facts(self) -> dict[str, float | None]:
        return self._rates() | {"samples_before": self.samples_before, "seconds_before": self.seconds_before}

    def _rates(self) -> dict[str, float | None]:
        rates = {"lr": self._highest, "lr_last": self._latest}
        return {name: None if rate is None else float(rate) for name, rate in rates.items()}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["samples_trained"] = self.samples_before + samples_trained(trainer)
        checkpoint["seconds_trained"] = self.seconds_before + time.monotonic() - self._began

    def on_load_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            self.samples_before = checkpoint.get("samples_trained", 0)
            self.seconds_before = checkpoint.get("seconds_trained", 0.0) if is_own_checkpoint(trainer) else 0.0
        else:  # the best checkpoint, for the test: these callbacks describe the end of the run
            ours = {one.state_key for one in trainer.callbacks if type(one).__module__.startswith(("lockstep.", "lightning."))}
            checkpoint["callbacks"] = {key: state for key, state in checkpoint["callbacks"].items() if key not in ours}
            if "current_model_state" in checkpoint:  # Lightning's WeightAveraging would test these, not the average
                checkpoint["current_model_state"] = checkpoint["state_dict"]

    def state_dict(self) -> dict[str, Any]:
        return self._rates()

    def forget(self) -> None:
        """Reset the rates recorded before this run."""
        self._highest = self._latest = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._highest, self._latest = state_dict["lr"], state_dict["lr_last"]


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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._at_first, self._frozen, self._unfrozen = None, set(), set()

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
        if trainer.ckpt_path is not None and is_own_checkpoint(trainer):
            _follow_functions([schedule for schedule in schedules if isinstance(schedule, LambdaLR)])


def _follow_functions(schedules: list[LambdaLR]) -> None:
    """Make the next step with the rate that the current function of the step gives.

    A LambdaLR saves no function, so the current function applies after loading. The optimizer still has the rate of the earlier
    function, which torch would update only after a step.
    """
    for schedule in schedules:
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
    """Remove callbacks of Lightning that would restart training, and call hooks that Lightning omits on resumption."""

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            _leave_out_finders(trainer, checkpoint["global_step"])
            for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
                if type(callback).load_state_dict is EarlyStopping.load_state_dict:  # it would restore the earlier patience
                    checkpoint["callbacks"].get(callback.state_key, {})["patience"] = callback.patience

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if batches_trained(trainer):
            _go_on_within_epoch(trainer, pl_module)


def _leave_out_finders(trainer: Any, step: int) -> None:
    """Remove Lightning's learning-rate and batch-size finders after step 0. When training starts they load their own checkpoint
    in place of the one to resume from, and training would restart; before a test one would reset the step count."""
    once = (BatchSizeFinder.on_fit_start, LearningRateFinder.on_fit_start)
    finders = [callback for callback in trainer.callbacks if type(callback).on_fit_start in once]
    trainer.callbacks = [callback for callback in trainer.callbacks if callback not in finders]
    if finders and step:
        names = join_first([type(callback).__name__ for callback in finders])
        log.warning(f"{names}: a run that goes on has the rate of its checkpoint, and the batch size of its config")


def _go_on_within_epoch(trainer: Any, model: LightningModule) -> None:
    """Call `on_train_epoch_start`, which Lightning skips when it resumes within an epoch, for two callbacks where it is safe.
    Weight averaging restores its schedule there, and knows whether it has counted the epoch; accumulation sets its number of
    batches. Hooks of other callbacks may be wrong to run twice."""
    for callback in trainer.callbacks:
        if isinstance(callback, (StochasticWeightAveraging, GradientAccumulationScheduler)):
            callback.on_train_epoch_start(trainer, model)
    hooks = (type(part) for part in (model, *trainer.callbacks))
    own = [kind.__name__ for kind in hooks if not kind.on_train_epoch_start.__module__.startswith(("lightning.", "lockstep."))]
    if own:
        why = "Lightning calls it before an epoch's first batch; what it sets and no checkpoint holds is missing"
        log.warning(f"on_train_epoch_start of {join_first(own)} is not called for the rest of this epoch: {why}")
