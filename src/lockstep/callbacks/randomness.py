"""Noise inside the model, such as dropout."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from lockstep import noise
from lockstep.datamodules.seeded import generator_states, seed_generators, set_generators
from lockstep.noise import Dropout, derive_seed, random_bits
from lockstep.runs.shares import dp_rank_and_size, has_same_bits
from lockstep.trainer.steps import batches_trained

_DROPOUT = 1000  # random stream of the first dropout layer; augmentation uses the streams from 0 on
_UNKNOWN = 1 << 20  # samples; more than any batch has


def draw_alike_in_setup(source: Any) -> None:
    """Make `setup` of a datamodule or a model draw the same numbers in every process and stage, from the current states of the
    generators, whatever `prepare_data` has drawn. A split that is drawn in `setup` is then always the same.

    Lightning calls prepare_data in one process only, its DDP reseeds before that, and a test comes after training.
    """
    source.setup = partial(
        _set_up, source.setup, generator_states()
    )  # which can be pickled: a spawned worker's dataset may hold the source


def _set_up(setup: Callable[..., None], drawn: tuple[Any, Any, Any], *arguments: Any, **named: Any) -> None:
    set_generators(drawn)
    setup(*arguments, **named)


class CounterBasedRandomness(Callback):
    """Seed the generators of torch, numpy and Python from (seed, epoch, batch, rank) at every training batch, and before the
    first, because data workers take their seeds from them. Pass each batch's samples to lockstep.noise and lockstep.nets.Dropout.

    Except for these two, ranks draw different numbers. A batch's draws do not depend on earlier draws.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._dropouts: list[Dropout] = []
        self._is_on_gpu = False
        self._trained: list[Any] = []  # loaders
        self._evaluated: list[Any] = []
        self._step: noise.Step | None = None  # of the training

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._is_on_gpu = trainer.strategy.root_device.type == "cuda"

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Begin here too, because Lightning does not start the epoch again when a run is resumed within it."""
        self._dropouts = [layer for layer in pl_module.modules() if isinstance(layer, Dropout) and layer.p > 0]
        self._trained = CombinedLoader(trainer.train_dataloader).flattened
        self._begin(trainer, batches_trained(trainer))

    def count(self, trainer: Trainer, batch_idx: int) -> None:
        """Seed the generators for a batch of the current epoch; -1 stands for before the first."""
        seed = derive_seed(self.seed, trainer.current_epoch, batch_idx, dp_rank_and_size(trainer)[0])
        seed_generators(seed)
        if self._is_on_gpu:
            torch.cuda.manual_seed(seed)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.count(trainer, -1)
        self._trained = CombinedLoader(trainer.train_dataloader).flattened
        self._begin(trainer, 0)

    def _begin(self, trainer: Any, batch_idx: int) -> noise.Step:
        """Begin a batch before its hooks, which may augment it. Do so once, so that no numbers are drawn twice."""
        step = _step(trainer, self._trained[:1], batch_idx, self.seed, trainer.current_epoch)
        if self._step is None or step != self._step:
            self._step = step
        noise.begin(self._step)
        return self._step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.count(trainer, batch_idx)
        step = self._begin(trainer, batch_idx)
        if self._dropouts:
            places = None if step.samples is None else step.places(step.samples, pl_module.device)
            for layer, dropout in enumerate(self._dropouts):
                dropout.count(None if places is None else random_bits(self.seed, trainer.current_epoch, places, _DROPOUT + layer))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._begin(trainer, batch_idx + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        noise.begin(None)

    def _begin_evaluation(self, trainer: Any, pl_module: LightningModule) -> None:
        loaders = {"test": trainer.test_dataloaders, "predict": trainer.predict_dataloaders}
        self._evaluated = CombinedLoader(loaders.get(trainer.state.stage, trainer.val_dataloaders)).flattened

    def _evaluate(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Begin a batch with the same noise in each evaluation. Virtual workers are seeded by their strategy."""
        if not has_same_bits(trainer):
            seed = derive_seed(self.seed, 1 + dataloader_idx)
            noise.begin(_step(trainer, self._evaluated[dataloader_idx:], batch_idx, seed, 0))

    def _end_evaluation(self, trainer: Trainer, pl_module: LightningModule) -> None:
        noise.begin(self._step if trainer.state.fn == "fit" else None)

    on_validation_start = on_test_start = on_predict_start = _begin_evaluation
    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = _evaluate
    on_validation_end = on_test_end = on_predict_end = _end_evaluation


def _step(trainer: Any, loaders: list[Any], batch_idx: int, seed: int, epoch: int) -> noise.Step:
    """Return the samples of a batch of the first loader, as its sampler divides them among ranks."""
    rank, ranks = dp_rank_and_size(trainer)
    sampler: Any = getattr(loaders[0], "sampler", None) if loaders else None
    size = getattr(sampler, "global_batch_size", None)
    if size is None:
        return noise.Step(seed, epoch, batch_idx * _UNKNOWN, rank, ranks)
    first = batch_idx * size
    left = min(size, sampler.samples_per_epoch - first)  # a loader that is shorter than another one restarts
    return noise.Step(seed, epoch, first, rank, ranks, len(range(rank, left, ranks)) if left > 0 else None)
