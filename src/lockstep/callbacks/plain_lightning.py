"""A LightningModule and a LightningDataModule that know nothing of this package."""

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

from lightning import Callback, LightningDataModule, LightningModule, Trainer
from lightning_utilities.core.apply_func import apply_to_collection
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from lockstep.callbacks.randomness import CounterBasedRandomness
from lockstep.console import first_of
from lockstep.datamodules.base import DataModule
from lockstep.datamodules.batches import samples_in
from lockstep.models.task import Task
from lockstep.runs.shares import share_of_batch
from lockstep.trainer.lightning_internals import batches_passed, begin_batches_again, with_sampler

log = logging.getLogger(__name__)


class PlainLightning(Callback):
    """Does for them from outside what a Task and a DataModule do by themselves, and says once what it can't.

    The order of training samples depends on the seed and the epoch alone, at any number of processes. A run that is continued
    loads anew the batches that it has trained on in its epoch, and passes over them. Samples and times are counted for the
    record of the run. Hyperparameters that a checkpoint could not be read with are left out of it.

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

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not isinstance(trainer.datamodule, DataModule):
            _order_once(trainer, trainer.datamodule, self.seed)

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        kinds = ((pl_module, Task), (trainer.datamodule, DataModule))
        lacking = [(part, kind) for part, kind in kinds if not isinstance(part, kind)]
        names = " and ".join(type(part).__name__ for part, _ in lacking)
        bases = " and ".join(f"{kind.__module__.rpartition('.')[0]}.{kind.__name__}" for _, kind in lacking)
        self.causes = list(_causes(trainer, pl_module)) if trainer.world_size > 1 else []
        within = "of an epoch that is resumed within, metrics are of its rest and random augmentation is another"
        log.info(f"{names}: plain Lightning. Not exact: {'; '.join([within, *self.causes])}. All of it is by {bases}")

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

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.samples_trained += samples_in(batch) or 0

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


def _causes(trainer: Any, model: LightningModule) -> Iterator[str]:
    if not isinstance(trainer.datamodule, DataModule):
        yield (
            f"{type(trainer.datamodule).__name__} is no lockstep.datamodules.DataModule: where its samples do not divide, "
            "torch's sampler repeats some, in evaluation and, without drop_last, at the end of an epoch of training"
        )
    if not isinstance(model, Task):
        yield (
            f"{type(model).__name__} is no lockstep.models.Task: unless its losses and metrics are sums over samples, "
            "a process with fewer of them counts as much"
        )


def _is_plain(value: Any) -> bool:
    """Does torch.load take it with weights_only?"""
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str) or isinstance(value, Tensor)


def _order_once(trainer: Any, datamodule: Any, seed: int) -> None:
    """Lightning itself does so for several processes only, and then shuffles what is not to be shuffled, too."""
    make: Callable[[], Any] = datamodule.train_dataloader

    @wraps(make)
    def train_dataloader() -> Any:
        return apply_to_collection(make(), DataLoader, lambda loader: _ordered(loader, trainer, seed))

    datamodule.train_dataloader = train_dataloader


def _ordered(loader: DataLoader[Any], trainer: Any, seed: int) -> DataLoader[Any]:
    """The loader with a DistributedSampler in place of torch's own two; as it is with any other way to draw samples."""
    sampler, batches = loader.sampler, loader.batch_sampler
    is_usual = type(loader) is DataLoader and (batches is None or getattr(batches, "sampler", None) is sampler)
    draws_some = isinstance(sampler, RandomSampler) and (sampler.replacement or sampler.num_samples != len(sampler.data_source))
    if not is_usual or draws_some or type(sampler) not in (RandomSampler, SequentialSampler):
        return loader
    rank, number = share_of_batch(trainer)
    order = DistributedSampler(
        loader.dataset,
        num_replicas=number,
        rank=rank,
        shuffle=isinstance(sampler, RandomSampler),
        seed=seed,
        drop_last=loader.drop_last,
    )
    return with_sampler(loader, order)
