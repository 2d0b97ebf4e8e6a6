"""Schedules that a checkpoint would overrule: a run that is resumed goes on with the checkpoint's."""

import logging
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from lockstep.callbacks.stepped_rate import is_own_checkpoint
from lockstep.errors import ConfigError, config_error

log = logging.getLogger(__name__)
# Of torch's schedules: what they are made with and never change.
_CONSTANTS = ("base_lrs", "total_steps", "T_max", "T_0", "T_mult", "eta_min", "step_size", "milestones", "gamma")
_CONSTANTS += ("start_factor", "end_factor", "total_iters", "power", "factor", "patience")


class SchedulesAsBefore(Callback):
    """Raise ConfigError where a run that is resumed has schedules of other kinds or other constants than its checkpoint's. Say by
    what a function of the step, such as `cosine`, changes the rate where its length is another one."""

    def __init__(self) -> None:
        self._before: list[str] | None = None  # their kinds, as lockstep.callbacks.SteppedRate has noted them

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._before = checkpoint["callbacks"].get("SteppedRate", {}).get("trained_with", {}).get("schedules")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._configured = _constants(trainer)
        now = [type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs]
        if self._before not in (None, now) and is_own_checkpoint(trainer):
            raise _refusal(
                trainer, f"its schedules are {', '.join(self._before or ()) or 'none'}, here {', '.join(now) or 'none'}"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        schedules = trainer.lr_scheduler_configs
        for schedule, configured, loaded in zip(schedules, self._configured, _constants(trainer), strict=False):
            for name in (name for name in configured if configured[name] != loaded[name]):
                kind = type(schedule.scheduler).__name__
                raise _refusal(trainer, f"its {kind} goes on with {name}={loaded[name]}, here it would have {configured[name]}")
        if trainer.ckpt_path is not None and is_own_checkpoint(trainer):
            _follow_functions([one.scheduler for one in schedules if isinstance(one.scheduler, LambdaLR)])


def _follow_functions(schedules: list[LambdaLR]) -> None:
    """Take the next step at the rate that a function of the step gives now.

    A LambdaLR saves no function, so that one of another length is in force once it is loaded. The optimizer still has the rate
    of the earlier one, which torch would change only after a step.
    """
    for schedule in schedules:
        for number, group in enumerate(schedule.optimizer.param_groups):
            before = float(group["lr"])
            rate = schedule.base_lrs[number] * schedule.lr_lambdas[number](schedule.last_epoch)
            if rate == schedule._last_lr[number] or before != schedule._last_lr[number]:
                continue  # it is as before, or something else has set the rate
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
            schedule._last_lr[number] = rate
            if number == 0:
                log.warning(f"The schedule has another length: the learning rate goes on at {rate:g}, not at {before:g}")


def _constants(trainer: Trainer) -> list[dict[str, Any]]:
    """Returns what each schedule was made with, which a checkpoint's state replaces."""
    made = [vars(config.scheduler) for config in trainer.lr_scheduler_configs]
    return [{name: values[name] for name in _CONSTANTS if name in values} for values in made]


def _refusal(trainer: Any, words: str) -> ConfigError:
    return config_error("checkpoint", trainer.ckpt_path, f"{words}; accepted is the same, or a new run, by fork=")
