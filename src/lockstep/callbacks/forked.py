"""Config of a forked run, applied where restoring the checkpoint would bring back the options that it was trained with."""

import itertools
import logging
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig
from omegaconf import DictConfig
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lockstep.callbacks.checkpoints import rewind_progress
from lockstep.callbacks.stepped_rate import SteppedRate
from lockstep.checkpointing import read_checkpoint
from lockstep.config.overrides import flat
from lockstep.datamodules.base import DataModule, order_key
from lockstep.runs.continuation import check_length
from lockstep.runs.fork import run_of, split_step
from lockstep.runs.results import ended_by
from lockstep.runs.saved import FILE, read_config
from lockstep.trainer.steps import batches_trained

log = logging.getLogger(__name__)
_LOADING = ("num_workers", "pin_memory", "persistent_workers")  # options of a datamodule that do not change its batches
_GROUPING = ("_target_", "match")  # options of a shipped model's optimizer and groups of parameters
_BATCHES = ("batch_size", "global_batch_size", "drop_last", "augment")  # and those that do not change the order of samples
_MORE_STATE = ("amsgrad", "centered", "momentum")  # options of torch's optimizers that need more of it where they are on
_SEEN = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")  # what a ReduceLROnPlateau has seen of its metric


def forked_from(cfg: DictConfig, checkpoint: Path) -> "Forked":
    """Return the callback of a run that begins from a checkpoint of another one.

    Raises ConfigError for a checkpoint of a later epoch than the last one.
    """
    content = read_checkpoint("fork", checkpoint, whole=())
    check_length(cfg, content.get("epoch", 0), checkpoint)
    log.info(f"Forked from {checkpoint}, at step {content.get('global_step', 0)}")
    return Forked()


class Forked(Callback):
    """Give optimizers the configured options before the first step, and move each schedule to where it would be if it had been
    used from the beginning. A ReduceLROnPlateau goes on with what it has seen; if the configured rate is unchanged, also with the
    rate that it has set.

    Does nothing if the command has changed nothing: the run is then the other one, to the bit.
    """

    def __init__(self) -> None:
        self._has_trained = False
        self._checkpoint: dict[str, Any] = {}
        self._options: list[list[dict[str, Any]]] = []
        self._schedules: list[dict[str, Any]] = []

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        saved = read_config(Path(trainer.default_root_dir))
        origin = None if saved is None else saved.forked_from
        self.is_changed = origin is None or bool(origin["changed"])
        same_with = (*_LOADING, *_BATCHES) if isinstance(getattr(trainer, "datamodule", None), DataModule) else _LOADING
        self._changed_batches = _changed_data(origin, same_with)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and self.is_changed:
            self._checkpoint = checkpoint
            if changed := self._changed_batches or _other_place(checkpoint, trainer.datamodule):
                _begin_epoch_again(checkpoint, changed)

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Note the configured options, while the optimizers are made and not restored yet."""
        if not self._checkpoint:
            return
        self._options = [[_options(group) for group in optimizer.param_groups] for optimizer in trainer.optimizers]
        self._schedules, self._checkpoint["lr_schedulers"] = self._checkpoint["lr_schedulers"], []
        if (why := self._why_another_state(trainer.optimizers, pl_module)) is not None:
            log.warning(f"Not carried over from the checkpoint: the optimizer's state, which {why}")
            self._checkpoint["optimizer_states"] = []

    def _why_another_state(self, optimizers: list[Optimizer], model: LightningModule) -> str | None:
        """Return why these optimizers can't go on with the checkpoint's state; None if they can."""
        names = [type(one).__name__ for one in optimizers]
        if (saved := self._trained_with.get("optimizers", names)) != names:
            return f"is of {' and '.join(saved)}"
        old = [state["param_groups"] for state in self._checkpoint["optimizer_states"]]
        new = [optimizer.param_groups for optimizer in optimizers]
        if [*map(_sizes, old)] != [*map(_sizes, new)]:
            return "is of other groups of parameters"
        before, now = (_grouping(one) for one in (self._checkpoint.get("hyper_parameters"), getattr(model, "model_config", None)))
        if before and now and before != now:
            other = (f"is of model.{key}={value}" for key, value in before.items() if now.get(key) != value)
            return next(other, "is of other groups of parameters")
        pairs = zip(itertools.chain(*old), itertools.chain(*new), strict=True)
        lacks = (name for one, other in pairs for name in _MORE_STATE if other.get(name) and not one.get(name))
        return next((f"has nothing for {name}" for name in lacks), None)

    @property
    def _trained_with(self) -> dict[str, Any]:
        return self._checkpoint.get("callbacks", {}).get("SteppedRate", {}).get("trained_with", {})

    def on_fit_end(self, trainer: Any, pl_module: LightningModule) -> None:
        if not self._has_trained:
            end = f"the checkpoint is at the end that {ended_by(trainer)} sets"
            log.warning(f"Nothing was trained: {end}; a later one lets the fork go on.")

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._has_trained = True
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


def _other_place(checkpoint: dict[str, Any], datamodule: Any) -> list[str]:
    """Return the keys for which the place within an epoch of a DataModule's is none of its order, or within a batch."""
    if not isinstance(datamodule, DataModule):
        return []
    before, now = checkpoint.get("order") or {}, datamodule.order_facts()
    other = [order_key(name) for name, value in now.items() if before.get(name, value) != value]
    trained = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["completed"]
    samples = trained * ((checkpoint.get("samples_per_batch") or [None])[0] or 0)
    return other or (["datamodule.batch_size"] if samples % datamodule.samples_per_batch else [])


def _changed_data(origin: dict[str, Any] | None, same_with: tuple[str, ...]) -> list[str]:
    """Return the datamodule keys that the fork has changed, except the options in `same_with`; none for a checkpoint outside of a
    run directory, whose data options are not known."""
    if origin is None or not (run_of(split_step(origin["checkpoint"])[0]) / FILE).is_file():
        return []
    keys = [key.split(".") for key in origin["changed"]]
    return [".".join(key) for key in keys if key[0] == "datamodule" and not (key[1:] and key[1] in same_with)]


def _begin_epoch_again(checkpoint: dict[str, Any], keys: list[str]) -> None:
    """Begin the epoch again. The place in plain Lightning's data is a number of batches, and the batches have changed."""
    loop = checkpoint["loops"]["fit_loop"]
    progress = loop["epoch_loop.batch_progress"]
    if (batches := progress["current"]["completed"]) and not progress["is_last_batch"]:
        rewind_progress(loop, within=False)
        checkpoint |= {"epoch_logs": {}, "samples_per_batch": None, "order": None}
        where = f"epoch {checkpoint['epoch'] + 1} begins again, not after {batches} batches"
        log.warning(f"Not carried over from the checkpoint: {where}, since {', '.join(keys)} is another")


def _sizes(groups: list[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _grouping(model_config: Any) -> dict[str, Any]:
    """Return the part of a model's config that decides which parameters a group has, and which optimizer keeps their state."""
    model = model_config.get("model") if isinstance(model_config, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(model.get("optimizer"), Mapping):
        return {}
    values = flat({name: model.get(name) or {} for name in ("optimizer", "param_groups")})
    return {key: value for key, value in values.items() if key.rpartition(".")[2] in _GROUPING}


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
    """Return how often the schedule would have moved. In a run with max_steps it is where its steps say, else where its epochs
    say: with another batch these have another number of steps."""
    if config.interval == "epoch":
        return trainer.current_epoch // config.frequency
    steps, batches = trainer.global_step, trainer.num_training_batches
    if trainer.max_steps < 0 and math.isfinite(batches):
        accumulated = trainer.accumulate_grad_batches
        steps = trainer.current_epoch * -(-batches // accumulated) + batches_trained(trainer) // accumulated
    return steps // config.frequency
