"""Checks of a user's module and data: monitored metrics that are not logged, samples that differ between processes or from the
checkpoint's, state that no checkpoint has."""

import logging
import pickle
import random
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from copy import copy
from typing import Any

import torch
from lightning import Callback, LightningModule
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import Dataset, IterableDataset
from torchmetrics import Metric

from lockstep.callbacks.every_run import is_own_checkpoint
from lockstep.console import join_first
from lockstep.datamodules.seeded import Draws, Seeded
from lockstep.errors import config_error
from lockstep.metrics import monitored
from lockstep.plain_lightning.processes import all_ranks
from lockstep.plain_lightning.reduced_logs import source_of
from lockstep.plain_lightning.streams import is_stateful
from lockstep.trainer.lightning_internals import logged_names

log = logging.getLogger(__name__)

_OF_LIGHTNING = {*vars(LightningModule()), "_hparams", "_hparams_initial", "_hparams_name", "forward"}  # which DDP sets
_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "lockstep", "torchmetrics", "builtins", "omegaconf")
_NAMED = 20  # changed values that are named


class MonitoredMetrics(Callback):
    """Raise ConfigError, before the first optimizer step, if the model has not logged a monitored metric, neither in Lightning's
    sanity check (one batch of validation) nor in its first training step.

    A name that may be logged later is accepted: a test metric, or one not of validation if hooks at the end of a batch or an
    epoch may log. A run that starts from a checkpoint has no sanity check.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg
        self._is_first_step = False

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        validates_later = trainer.num_sanity_val_steps == 0 and trainer.enable_validation
        self._is_first_step = trainer.ckpt_path is None and not validates_later

    def on_before_optimizer_step(self, trainer: Any, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if not self._is_first_step:
            return
        self._is_first_step = False
        known, later = logged_names(trainer), _may_log_later(trainer, pl_module)
        for key, metric in monitored(self.cfg):
            is_later = metric.startswith("test") or (later and not metric.startswith("val"))
            if metric not in known and not is_later:
                mode = ", with its optimized_mode, or null" if key == "optimized_metric" else ""
                logged = f"{', '.join(sorted(known)) or 'nothing'} before its first optimizer step; use one of these{mode}"
                if metric.startswith("val") and trainer.enable_validation:
                    logged += f". If only the sanity check does not log {metric}, use trainer.num_sanity_val_steps=0"
                raise config_error(key, metric, f"the model logs {logged}")


def _may_log_later(trainer: Any, model: LightningModule) -> bool:
    hooks = ("on_train_batch_end", "on_train_epoch_end")
    has_own = any(not type(one).__module__.startswith(("lockstep.", "lightning.")) for one in trainer.callbacks)
    return has_own or not model.automatic_optimization or any(is_overridden(hook, model, LightningModule) for hook in hooks)


class SameSamples(Callback):
    """Raise ConfigError if a resumed run has the same config but other training samples, for example samples made from the order
    of a set, which depends on Python's hash seed."""

    def __init__(self, cfg: DictConfig) -> None:
        self._config = OmegaConf.to_yaml(cfg.datamodule or cfg.model, resolve=True)
        self._samples: list[Any] = []
        self._before: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        loaders = CombinedLoader(trainer.train_dataloader).flattened
        self._samples = [fingerprint(getattr(loader, "dataset", None)) for loader in loaders]
        is_same_run = is_own_checkpoint(trainer) and self._before.get("config") == self._config
        if not trainer.is_global_zero or not is_same_run or trainer.reload_dataloaders_every_n_epochs:
            return
        if self._before["samples"] not in ([], self._samples):  # empty in those of Lightning's finders
            why = "train_dataloader has other samples than this run was trained on (the order of a set depends on PYTHONHASHSEED)"
            raise config_error("checkpoint", trainer.ckpt_path, f"{why}; make them the same, or use fork=RUN_DIR for other data")

    def state_dict(self) -> dict[str, Any]:
        return {"config": self._config, "samples": self._samples}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = state_dict


def check_processes(name: str, shared: list[tuple[Any, Any]]) -> None:
    """Raise ConfigError if processes have different data, or draw it in different orders; a collective. `name` is the hook that
    made the loaders, `shared` has their datasets and the sampler that divides each."""
    ranks = all_ranks([(sampler.length, fingerprint(data), sampler.order_checksum()) for data, sampler in shared])
    if any(rank != ranks[0] for rank in ranks):
        differ = f"{name} has other samples in each process, or draws them in another order"
        needs = "make the same whole in each, or use +trainer.use_distributed_sampler=false for data that is divided already"
        raise config_error("trainer.devices", len(ranks), f"{differ}; {needs}")


def fingerprint(dataset: Any) -> list[int] | None:
    """Return the length and checksums of the first three samples and the last; None if they are unknown, for a stream or samples
    that differ each time.

    A copy of the dataset is read, so that a dataset that opens its file at the first read still does so in each data worker.
    """
    dataset = dataset.dataset if isinstance(dataset, Seeded) else dataset
    with suppress(Exception), isolate_rng(include_cuda=False):  # errors are raised where the samples are used
        if not isinstance(dataset, IterableDataset) and (length := len(dataset)):
            samples = Seeded(_copied(dataset), 0)
            first, *others = (checksum(samples[Draws([place])][0]) for place in (0, 0, *range(1, min(3, length)), length - 1))
            return [length, *others] if first == others[0] else None
    return None


def _copied(dataset: Any) -> Any:
    """Return a copy of a dataset, and of nested datasets, that shares their data."""
    copied = copy(dataset)
    for name, value in vars(copied).items():
        if isinstance(value, Dataset):
            setattr(copied, name, _copied(value))
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Dataset):
            setattr(copied, name, [_copied(one) for one in value])
    return copied


class UnsavedState(Callback):
    """Warn once, at the first save after a step, about non-persistent buffers, attributes and streams that have changed in
    training: a resumed run starts with their initial state."""

    def __init__(self) -> None:
        self._before: dict[str, int] | None = None  # None after the comparison

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._before = dict(_checksums(trainer, pl_module))

    def on_save_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit" or self._before is None or not trainer.fit_loop.epoch_loop.batch_progress.total.processed:
            return
        before, self._before = self._before, None
        names = [name for name, now in _checksums(trainer, pl_module) if now != before.get(name, 0)]
        saves = source_of(type(pl_module).on_save_checkpoint) if is_overridden("on_save_checkpoint", pl_module) else ""
        if changed := sorted(name for name in names if name.partition(".")[0] not in saves):
            why = "Training changes what checkpoints do not have, so that a resumed run begins with its initial value"
            needs = "make tensors persistent buffers, or save them in on_save_checkpoint"
            log.warning(f"{why}: {join_first(changed, _NAMED)}; {needs}")


def _checksums(trainer: Any, module: LightningModule) -> Iterator[tuple[str, int]]:
    """Yield the name and a checksum of each value that Lightning does not save. Metrics are reset in each epoch."""
    saved = {id(one) for one in (*module.parameters(), *module.buffers(), *trainer.optimizers)}
    saved |= {id(config.scheduler) for config in trainer.lr_scheduler_configs}
    for prefix, part in module.named_modules():
        own = {} if isinstance(part, Metric) or (_is_of_library(part) and part is not module) else vars(part)
        sums = {name: checksum(value, saved) for name, value in own.items() if name not in _OF_LIGHTNING}
        sums |= {name: checksum(part._buffers[name]) for name in part._non_persistent_buffers_set}
        yield from ((f"{prefix}.{name}".lstrip("."), number) for name, number in sums.items())
    for loader in CombinedLoader(trainer.train_dataloader).flattened:
        stream = getattr(loader, "dataset", loader)
        goes_on = isinstance(stream, IterableDataset) or stream is loader
        if goes_on and not is_stateful(stream) and hasattr(stream, "__dict__"):
            yield f"the place in {type(stream).__name__}", checksum(vars(stream))


def _is_of_library(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _LIBRARIES


def checksum(value: Any, saved: Set[int] = frozenset()) -> int:
    """Return a checksum of a value, with what it contains; 0 for an empty container, or one that can't be read. Objects whose ids
    are in `saved` are left out. Equal values have equal checksums, in any process."""
    with suppress(Exception):
        content = _content(value, saved)
        return zlib.crc32(repr(content).encode()) if content else 0
    return 0


def _content(value: Any, saved: Set[int]) -> Any:
    """Return a value as plain containers: of tensors, arrays and images the checksums of their bytes, of other objects the
    attributes, of functions and objects of libraries the names of their types."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, type) or id(value) in saved:
        return value.__qualname__ if isinstance(value, type) else None
    if isinstance(value, Tensor):
        value = value.detach().cpu().to_dense().contiguous().flatten().view(torch.uint8).numpy()  # NumPy has no bfloat16
    if hasattr(value, "tobytes"):
        return zlib.crc32(value.tobytes())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_content(one, saved) for one in value]
    is_mapping, is_generator = isinstance(value, Mapping), isinstance(value, random.Random | torch.Generator)
    if is_mapping or is_stateful(value):
        return {key: _content(one, saved) for key, one in (value if is_mapping else value.state_dict()).items()}
    if is_generator or not (hasattr(value, "__dict__") or _is_of_library(value)):
        return pickle.dumps(value)
    return type(value).__qualname__ if _is_of_library(value) else _content(vars(value), saved)
