"""Plain steps of an epoch: no model, strategy or optimizer does a part of them in a way of its own."""

from typing import Any

import torch
from lightning import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.fetchers import _PrefetchDataFetcher
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer

from lockstep.strategies.ddp import DDP

_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
# A model that overrides one of these steps in its own way.
_OPTIMIZATION_HOOKS = ("optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping", "lr_scheduler_step")
_OPTIMIZERS = ("torch.optim.", f"{__name__.partition('.')[0]}.")  # that ask for the gradients once a step
_STRATEGY_METHODS = ("batch_to_device", "on_train_batch_start", "post_training_step")
_STRATEGY_METHODS += ("pre_backward", "backward", "post_backward", "optimizer_step")
_PRECISION_METHODS = ("pre_backward", "backward", "post_backward", "_after_closure", "_wrap_closure", "optimizer_step")


def is_plain(trainer: Any, data_fetcher: Any) -> bool:
    """True if the short way of epoch_loop.py does all that Lightning does in the steps of the epoch that begins."""
    model, datamodule, optimizers = trainer.lightning_module, trainer.datamodule, trainer.optimizers
    has_hooks: list[tuple[Any, Any, tuple[str, ...]]] = [
        (model, LightningModule, (*_OPTIMIZATION_HOOKS, *_TRANSFER_HOOKS, "on_train_batch_start"))
    ]
    if datamodule is not None:
        has_hooks.append((datamodule, LightningDataModule, _TRANSFER_HOOKS))
    return (
        model.automatic_optimization
        and trainer.accumulate_grad_batches == 1
        and type(data_fetcher) is _PrefetchDataFetcher
        and trainer._val_check_time_interval is None
        and not trainer.fast_dev_run
        and len(optimizers) == 1
        and _is_plain_optimizer(optimizers[0])
        and _is_plain_strategy(trainer.strategy)
        and _is_plain_precision(trainer.precision_plugin)
        and not any(is_replaced(name, owner, parent) for owner, parent, names in has_hooks for name in names)
        and not any(config.reduce_on_plateau and config.interval == "step" for config in trainer.lr_scheduler_configs)
    )


def is_replaced(name: str, owner: Any, parent: type) -> bool:
    """True if object or class has a method of its own. To Lightning alone, one that `functools.wraps` its parent's is that."""
    return name in vars(owner) or is_overridden(name, owner, parent)


def saves_no_steps(hook: str, callback: Callback) -> bool:
    """Return whether the hook is a ModelCheckpoint's own, which only looks whether it is to save within the epoch."""
    if hook != "on_train_batch_end" or not isinstance(callback, ModelCheckpoint) or is_replaced(hook, callback, ModelCheckpoint):
        return False
    return callback._every_n_train_steps < 1 and callback._train_time_interval is None


def _is_plain_optimizer(optimizer: Optimizer) -> bool:
    step: Any = vars(optimizer).get("step")  # torch's schedules replace it, to count; others may want the closure
    return (
        type(optimizer).__module__.startswith(_OPTIMIZERS)
        and not isinstance(optimizer, torch.optim.LBFGS)  # which calls its closure more than once
        and not optimizer._optimizer_step_pre_hooks
        and (step is None or hasattr(step, "_wrapped_by_lr_sched"))
    )


def _is_plain_strategy(strategy: Any) -> bool:
    if type(strategy) is SingleDeviceStrategy:
        return True
    return (
        isinstance(strategy, DDPStrategy)
        and strategy._model_averager is None
        and all(getattr(type(strategy), name) in (getattr(DDPStrategy, name), getattr(DDP, name)) for name in _STRATEGY_METHODS)
    )


def _is_plain_precision(precision: Any) -> bool:
    if type(precision) is MixedPrecision:
        return precision.scaler is None
    return all(getattr(type(precision), name) is getattr(Precision, name) for name in _PRECISION_METHODS)
