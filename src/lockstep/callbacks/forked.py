"""What a run that is forked has of its config, where restoring a checkpoint would bring what it was trained with."""

import logging
import math
import warnings
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lockstep.callbacks.stepped_rate import SteppedRate
from lockstep.runs.identity import Identity
from lockstep.trainer.steps import batches_trained

log = logging.getLogger(__name__)
_SEEN = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")  # by a ReduceLROnPlateau, of its metric


class Forked(Callback):
    """Before the first step, gives optimizers the configured options, and brings each schedule to where it would be now if it had
    been this one from the beginning. A ReduceLROnPlateau goes on with what it has seen, and where the configured rate is the
    same with what it has made of it.

    Does nothing where the command has changed nothing: the run is then the other one, to the bit.
    """

    def __init__(self) -> None:
        self._checkpoint: dict[str, Any] = {}
        self._options: list[list[dict[str, Any]]] = []
        self._schedules: list[dict[str, Any]] = []

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        identity = Identity.read(Path(trainer.default_root_dir))
        origin = None if identity is None else identity.forked_from
        self.is_changed = origin is None or bool(origin["changed"])
        if stage == "fit" and hasattr(trainer.datamodule, "is_forked"):
            trainer.datamodule.is_forked = True

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and self.is_changed:
            self._checkpoint = checkpoint
            if getattr(trainer.datamodule, "start", None) == (checkpoint["epoch"], 0) and hasattr(pl_module, "train_means"):
                pl_module.train_means.reset()

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """The optimizers are made, and not restored yet."""
        if not self._checkpoint:
            return
        self._options = [[_options(group) for group in optimizer.param_groups] for optimizer in trainer.optimizers]
        self._schedules, self._checkpoint["lr_schedulers"] = self._checkpoint["lr_schedulers"], []
        names = [type(one).__name__ for one in trainer.optimizers]
        saved = self._trained_with.get("optimizers", names)
        sizes = [_sizes(state) for state in self._checkpoint["optimizer_states"]]
        if saved != names or sizes != [_sizes(one.state_dict()) for one in trainer.optimizers]:
            other = f"of {' and '.join(saved)}" if saved != names else "of other groups of parameters"
            log.warning(f"Not carried over from the checkpoint: the optimizer's state, which is {other}")
            self._checkpoint["optimizer_states"] = []

    @property
    def _trained_with(self) -> dict[str, Any]:
        return self._checkpoint.get("callbacks", {}).get("SteppedRate", {}).get("trained_with", {})

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        if not self._checkpoint:
            return
        rates = next(callback for callback in trainer.callbacks if isinstance(callback, SteppedRate))
        is_same_rate = "lr" in self._trained_with and self._trained_with["lr"] == rates.trained_with.get("lr")
        configs: list[LRSchedulerConfig] = trainer.lr_scheduler_configs
        scheduled = {id(one.scheduler.optimizer) for one in configs if not isinstance(one.scheduler, ReduceLROnPlateau)}
        for optimizer, options in zip(trainer.optimizers, self._options, strict=True):
            _configure(optimizer, options, keeps_rate=is_same_rate and id(optimizer) not in scheduled)
        for number, config in enumerate(configs):
            _move(config, trainer, self._schedules[number] if number < len(self._schedules) else {})
        rates.forget()
        self._checkpoint = {}


def _sizes(state: dict[str, Any]) -> list[int]:
    return [len(group["params"]) for group in state["param_groups"]]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in group.items() if name != "params"}
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in own.items()}


def _configure(optimizer: Optimizer, options: list[dict[str, Any]], keeps_rate: bool) -> None:
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update({name: value for name, value in own.items() if not (keeps_rate and name == "lr")})


def _move(config: LRSchedulerConfig, trainer: Any, saved: dict[str, Any]) -> None:
    if isinstance(scheduler := config.scheduler, ReduceLROnPlateau):
        vars(scheduler).update({name: saved[name] for name in _SEEN if "num_bad_epochs" in saved})
        return
    with warnings.catch_warnings():  # torch's, that the optimizer has not stepped yet
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        for _ in range(_moves(trainer, config)):
            scheduler.step()


def _moves(trainer: Any, config: LRSchedulerConfig) -> int:
    """How often the schedule would have moved. A run that ends after so many steps is where its steps say; one that ends after
    so many epochs where its epochs do: with another batch these have another number of steps."""
    if config.interval == "epoch":
        return trainer.current_epoch // config.frequency
    steps, batches = trainer.global_step, trainer.num_training_batches
    if trainer.max_steps < 0 and math.isfinite(batches):
        accumulated = trainer.accumulate_grad_batches
        steps = trainer.current_epoch * -(-batches // accumulated) + batches_trained(trainer) // accumulated
    return steps // config.frequency
