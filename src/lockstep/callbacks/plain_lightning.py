"""A LightningModule and a LightningDataModule, or loaders of the module's own, that know nothing of this package."""

import logging
import time
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from functools import wraps
from typing import Any

from lightning import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core.apply_func import apply_to_collection
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader

from lockstep.callbacks.randomness import CounterBasedRandomness
from lockstep.console import first_of
from lockstep.datamodules.base import DataModule
from lockstep.datamodules.batches import samples_in
from lockstep.datamodules.torch_loaders import SharedSampler, shared_loader
from lockstep.models.task import Task
from lockstep.runs.shares import share_of_batch
from lockstep.trainer.batchnorm import uncounted
from lockstep.trainer.lightning_internals import batches_passed, begin_batches_again, log_batch_as
from lockstep.trainer.reduced_logs import reduce_logs

log = logging.getLogger(__name__)

_LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader")
_SAME = "Each sample is taken once, gradients are those of the whole batch, and what is logged over an epoch is of all processes."
_NOT_KNOWN = "random numbers that the code draws, losses that are no means over a batch, state that it keeps between batches"
_WITHIN = "Resumed within an epoch, its metrics are of its rest, and random augmentation in the process itself is another."


class PlainLightning(Callback):
    """Does for them from outside what a Task and a DataModule do by themselves, and says once what it can't.

    Training and evaluation take the batches of one process, shared out (see lockstep.datamodules.torch_loaders). Where ranks hold
    unequal numbers of a batch's samples, each rank's gradient is weighted by its number: the step is that of the whole batch, for
    a loss that is a mean over its batch. What is logged over an epoch is reduced over ranks (see lockstep.trainer.reduced_logs).
    A run that is continued loads anew the batches that it has trained on in its epoch, and passes over them. Samples and times
    are counted for the record of the run. Hyperparameters that a checkpoint could not be read with are left out of it.

    Attributes:
        causes: what keeps several processes from giving the result of one, for the record of the run.
        results, samples_trained, train_time, train_cpu_time: as of a Task.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.causes: list[str] = []
        self.samples_trained, self.train_time, self.train_cpu_time = 0, 0.0, 0.0
        self.results: dict[str, float] = {}
        self._is_first_epoch = True
        self._has_said: set[str] = set()
        self._shared: list[Any] = []  # whose loaders are shared out already
        self._samplers: list[SharedSampler | None] = []  # of the training loaders
        self._weight = 1.0  # of this rank's gradient in the step
        self._is_dummy = False  # has this rank another's sample, since the batch has none for it?
        self._around_batch = ExitStack()

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        source = trainer.datamodule or pl_module
        if not isinstance(source, DataModule) and source not in self._shared:
            self._shared.append(source)
            for name in _LOADERS:
                if is_overridden(name, source):
                    setattr(source, name, self._sharing(trainer, getattr(source, name), name))
        if trainer.world_size > 1 and not isinstance(pl_module, Task):
            reduce_logs(trainer, self._warn)

    def _sharing(self, trainer: Any, make: Any, name: str) -> Any:
        """The method of a datamodule, or of the module, that makes loaders, with those of this rank's share."""
        training = name == _LOADERS[0]

        def share(loader: DataLoader[Any]) -> DataLoader[Any]:
            shared = shared_loader(loader, share_of_batch(trainer), self.seed, training)
            if training:
                self._samplers.append(None if shared is None else shared.sampler)  # pyright: ignore[reportArgumentType]
            if shared is None and trainer.world_size > 1:
                self._warn(f"{name} draws batches in its own way, which Lightning shares out")
            return loader if shared is None else shared

        @wraps(make)
        def shared_out(*arguments: Any) -> Any:
            if training:
                self._samplers = []
            return apply_to_collection(make(*arguments), DataLoader, share)

        return shared_out

    def _warn(self, line: str) -> None:
        if line not in self.causes:
            self.causes.append(line)
            log.warning(f"Not as on one process: {line}")

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        parts = [part for part in (pl_module, trainer.datamodule) if part is not None and not isinstance(part, Task | DataModule)]
        names = " and ".join(type(part).__name__ for part in parts)
        several = f" {_SAME} Not known: {_NOT_KNOWN}; scripts/parity.py finds them." if trainer.world_size > 1 else ""
        log.info(f"{names}: plain Lightning.{several} {_WITHIN}")

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._started = time.perf_counter(), time.process_time()
        self._is_first_epoch = True
        if batches_passed(trainer):
            self._begin_again(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        if self._is_first_epoch:
            self._begin_again(trainer)

    def _begin_again(self, trainer: Any) -> None:
        """Lightning has begun to load before it knew the epoch, with whatever state the generators were in."""
        self._is_first_epoch = False
        if not isinstance(trainer.datamodule, DataModule):
            warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended before the epoch ended")
            counter = next((one for one in trainer.callbacks if isinstance(one, CounterBasedRandomness)), None)
            begin_batches_again(trainer, (lambda _: None) if counter is None else lambda batch: counter.count(trainer, batch))

    def on_train_batch_start(self, trainer: Any, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        sampler = self._samplers[0] if len(self._samplers) == 1 else None
        own, whole = (1, 1) if sampler is None else sampler.samples_in(batch_idx)
        self._weight = 1.0 if sampler is None else own * sampler.num_replicas / whole
        self._is_dummy = own == 0
        if self._is_dummy:
            log_batch_as(trainer, 0)
            self._around_batch.enter_context(uncounted())

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if self._weight != 1.0 and loss.requires_grad:
            weight = self._weight
            loss.register_hook(lambda gradient: gradient * weight)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._around_batch.close()
        self.samples_trained += 0 if self._is_dummy else samples_in(batch) or 0

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.train_time, self.train_cpu_time = time.perf_counter() - self._started[0], time.process_time() - self._started[1]
        self.results = {name: float(value) for name, value in trainer.callback_metrics.items()}  # a test forgets them

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Of `save_hyperparameters`, which keeps a network or a function that was an argument too."""
        for key in (LightningModule.CHECKPOINT_HYPER_PARAMS_KEY, LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY):
            values: Any = checkpoint.get(key)
            if OmegaConf.is_config(values):
                checkpoint.pop(LightningModule.CHECKPOINT_HYPER_PARAMS_TYPE, None)
                values = OmegaConf.to_container(values, resolve=True)
            if values:
                checkpoint[key] = {name: value for name, value in values.items() if _is_plain(value)}
                self._say_left_out(values.keys() - checkpoint[key].keys())

    def _say_left_out(self, names: set[str]) -> None:
        if names - self._has_said:
            log.info(f"hyperparameters that are no plain values are not kept in checkpoints: {first_of(sorted(names))}")
            self._has_said |= names


def _is_plain(value: Any) -> bool:
    """Does torch.load take it with weights_only?"""
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str) or isinstance(value, Tensor)
