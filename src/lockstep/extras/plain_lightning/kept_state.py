"""State of a module that Lightning's checkpoints do not hold."""

import inspect
import logging
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningDataModule, LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import Metric

from lockstep.console import join_first
from lockstep.extras.plain_lightning.plain_values import is_plain
from lockstep.extras.plain_lightning.same_samples import checksum
from lockstep.extras.plain_lightning.streams import Positioned, is_stateful

log = logging.getLogger(__name__)

_OF_LIGHTNING = {*vars(LightningModule()), "_hparams", "_hparams_initial", "_hparams_name"}
_NOT_THE_USER_S = ("torch", "lightning", "pytorch_lightning", "lockstep", "torchmetrics", "builtins", "omegaconf")
_OTHERS = (type, LightningOptimizer, LightningDataModule, DataLoader)  # which have methods of that name
_DEEP = 4  # levels of containers and objects that are looked into
_LAST = 3  # entries of a container that are looked at: what is appended, or taken away, is at an end


class KeptState(Callback):
    """Save and restore buffers that are not persistent, and attributes with a plain `state_dict` that have changed in training.
    Name attributes of other kinds that have changed, in a line at the first save."""

    def __init__(self) -> None:
        self._saved: dict[str, Any] = {}  # by the path of an attribute
        self._before: dict[str, Any] = {}
        self._has_said = False

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        states = dict(_states(trainer, pl_module))
        for path, state in self._saved.items():
            if path in states:
                _restore(states[path], state)
        self._before = _marks(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit" or not self._before:
            return
        now, states = _marks(trainer, pl_module), dict(_states(trainer, pl_module))
        changed = [path for path in now if path in self._saved or now[path] != self._before.get(path)]
        kept = {path: _state(states[path]) for path in changed if path in states}
        self._saved = {path: state for path, state in kept.items() if is_plain(state)}
        checkpoint["kept_state"] = self._saved
        if not self._has_said and trainer.fit_loop.epoch_loop.batch_progress.total.processed:
            self._has_said = True
            if lost := sorted(path for path in changed if path not in self._saved and not _saves(pl_module, path)):
                why = "change in training and are not in checkpoints: a resumed run begins with them anew"
                log.warning(f"{join_first(lost)} {why}; make tensors buffers, or save them in on_save_checkpoint")

    def on_load_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._saved = checkpoint.get("kept_state", {})


def _states(trainer: Any, module: LightningModule) -> Iterator[tuple[str, Any]]:
    """Yield buffers that are not persistent, and what has a state that Lightning does not save, by the path of the attribute."""
    theirs = [*trainer.optimizers, *(config.scheduler for config in trainer.lr_scheduler_configs)]
    for prefix, part in _parts(module):
        yield from (
            (prefix + name, part._buffers[name]) for name in part._non_persistent_buffers_set if part._buffers[name] is not None
        )
        for name, value in _attributes(part):
            several = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else None
            for path, one in [(name, value)] if several is None else [(f"{name}.{key}", one) for key, one in several]:
                if is_stateful(one) and not isinstance(one, _OTHERS) and not any(one is other for other in theirs):
                    yield prefix + path, one


def _parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and those in it, less metrics, which begin anew in each epoch."""
    yield prefix, module
    for name, part in module.named_children():
        if not isinstance(part, Metric):
            yield from _parts(part, f"{prefix}{name}.")


def _attributes(part: nn.Module) -> Iterator[tuple[str, Any]]:
    if isinstance(part, LightningModule) or not _is_known(type(part)):
        yield from ((name, value) for name, value in vars(part).items() if name not in _OF_LIGHTNING)


def _is_known(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _NOT_THE_USER_S


def _state(value: Any) -> Any:
    if value is None or isinstance(value, Tensor):
        return value
    state = value.state_dict()
    return dict(state) if isinstance(state, dict) else state


def _restore(value: Any, state: Any) -> None:
    if isinstance(value, Tensor):
        with torch.no_grad():
            value.set_(state.to(value)) if value.shape != state.shape else value.copy_(state)
    elif value is not None:
        value.load_state_dict(state)


def _marks(trainer: Any, module: LightningModule) -> dict[str, Any]:
    """Return what shows whether values have changed."""
    states = dict(_states(trainer, module))
    marks = {path: checksum(value) if isinstance(value, Tensor) else _mark(_state(value)) for path, value in states.items()}
    known = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for prefix, part in _parts(module):
        for name, value in _attributes(part):
            if not callable(value) and not any(path.startswith(prefix + name) for path in states):
                marks[prefix + name] = _mark(value, known)
    for loader in CombinedLoader(trainer.train_dataloader).flattened:
        stream = getattr(loader, "dataset", loader)
        goes_on = isinstance(stream, IterableDataset) or stream is loader
        if goes_on and not isinstance(loader, Positioned) and not is_stateful(stream) and hasattr(stream, "__dict__"):
            marks[f"the place in {type(stream).__name__}"] = _mark(vars(stream))
    return marks


def _mark(value: Any, known: set[int] = frozenset(), depth: int = _DEEP) -> Any:  # pyright: ignore[reportArgumentType]
    if isinstance(value, Tensor):
        version = None if value.is_inference() else value._version
        return None if id(value) in known else (value.data_ptr(), version, value.shape)
    if value is None or isinstance(value, str | bytes | int | float | complex | random.Random):
        return repr(value.getstate() if isinstance(value, random.Random) else value)
    if isinstance(value, torch.Generator | np.ndarray):
        return checksum(value.get_state() if isinstance(value, torch.Generator) else value)
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if depth == 0 or callable(value):
        return type(value).__name__
    if isinstance(value, list | tuple | deque | dict | set):
        entries = list(value.items() if isinstance(value, dict) else value)
        return len(entries), [_mark(entry, known, depth - 1) for entry in (*entries[:_LAST], *entries[-_LAST:])]
    if _is_known(type(value)) or not hasattr(value, "__dict__"):
        return type(value).__name__
    return [(name, _mark(one, known, depth - 1)) for name, one in vars(value).items()]


def _saves(module: LightningModule, path: str) -> bool:
    """Return whether the module's own `on_save_checkpoint` names the attribute."""
    if not is_overridden("on_save_checkpoint", module, LightningModule):
        return False
    try:
        return path.split(".")[0] in inspect.getsource(type(module).on_save_checkpoint)
    except (OSError, TypeError):
        return False
