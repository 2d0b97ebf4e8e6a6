"""Warn about state of a module that changes in training and that no checkpoint has."""

import logging
import pickle
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from torchmetrics import Metric

from lockstep.console import join_first
from lockstep.plain_lightning.reduced_logs import source_of
from lockstep.plain_lightning.same_samples import checksum
from lockstep.plain_lightning.streams import Positioned, is_stateful

log = logging.getLogger(__name__)

_OF_LIGHTNING = {*vars(LightningModule()), "_hparams", "_hparams_initial", "_hparams_name"}
_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "lockstep", "torchmetrics", "builtins", "omegaconf")
_DEEP = 6  # levels of nested containers and objects that are inspected
_MANY = 20  # entries of a container that are inspected; in a longer one, those at its ends
_NAMED = 20  # changed values that are named
_GENERATORS = (random.Random, np.random.Generator, torch.Generator)


class UnsavedState(Callback):
    """Warn once, at the first save after a step, about non-persistent buffers, attributes and streams that have changed in
    training: a resumed run starts with their initial state."""

    def __init__(self) -> None:
        self._before: dict[str, Any] | None = None  # None after the comparison

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._before = _marks(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit" or self._before is None or not trainer.fit_loop.epoch_loop.batch_progress.total.processed:
            return
        before, self._before = self._before, None
        now = _marks(trainer, pl_module)
        changed = sorted(name for name in now if now[name] != before.get(name) and not _saves(pl_module, name))
        if changed:
            why = "change in training and are not in checkpoints: a resumed run begins with them anew"
            log.warning(
                f"{join_first(changed, _NAMED)} {why}; make tensors persistent buffers, or save them in on_save_checkpoint"
            )


def _marks(trainer: Any, module: LightningModule) -> dict[str, Any]:
    """Return, by name, a fingerprint of each value that Lightning does not save."""
    saved = {id(one) for one in (*module.parameters(), *module.buffers(), *trainer.optimizers)}
    saved |= {id(config.scheduler) for config in trainer.lr_scheduler_configs}
    marks: dict[str, Any] = {}
    for prefix, part in _parts(module):
        marks |= {prefix + name: _mark(part._buffers[name]) for name in part._non_persistent_buffers_set}
        if isinstance(part, LightningModule) or not _is_of_library(part):
            own = {name: value for name, value in vars(part).items() if name not in _OF_LIGHTNING}
            marks |= {prefix + name: _mark(value, saved) for name, value in own.items()}
    for loader in CombinedLoader(trainer.train_dataloader).flattened:
        stream = getattr(loader, "dataset", loader)
        goes_on = isinstance(stream, IterableDataset) or stream is loader
        if goes_on and not isinstance(loader, Positioned) and not is_stateful(stream) and hasattr(stream, "__dict__"):
            marks[f"the place in {type(stream).__name__}"] = _mark(vars(stream))
    return marks


def _parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and its submodules, except metrics, which are reset in each epoch."""
    yield prefix, module
    for name, part in module.named_children():
        if not isinstance(part, Metric):
            yield from _parts(part, f"{prefix}{name}.")


def _is_of_library(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _LIBRARIES


def _mark(value: Any, saved: set[int] = frozenset(), depth: int = _DEEP) -> Any:  # pyright: ignore[reportArgumentType]
    if id(value) in saved or depth == 0 or type(value).__module__.startswith("lightning"):
        return None
    if isinstance(value, Tensor | np.ndarray):
        return checksum(value)
    if isinstance(value, _GENERATORS):
        return pickle.dumps(value)
    if is_stateful(value) and not isinstance(value, type):
        return _mark(value.state_dict(), saved, depth - 1)
    if isinstance(value, list | tuple | deque | dict | set):
        entries = list(value.values() if isinstance(value, dict) else value)
        looked_at = entries if len(entries) <= _MANY else (*entries[: _MANY // 2], *entries[-_MANY // 2 :])
        return len(entries), [_mark(entry, saved, depth - 1) for entry in looked_at]
    if value is None or isinstance(value, str | bytes | int | float | complex):
        return repr(value)
    if callable(value) or _is_of_library(value) or not hasattr(value, "__dict__"):
        return None
    return [(name, _mark(one, saved, depth - 1)) for name, one in vars(value).items()]


def _saves(module: LightningModule, name: str) -> bool:
    """Return whether the source of the module's `on_save_checkpoint` contains the attribute's name."""
    hook = type(module).on_save_checkpoint
    return hook is not LightningModule.on_save_checkpoint and name.split(".")[0] in source_of(hook)
