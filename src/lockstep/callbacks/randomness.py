"""Noise inside the model, such as dropout."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from lockstep import noise
from lockstep.datamodules.seeded import seed_generators
from lockstep.noise import Dropout, derive_seed
from lockstep.runs.shares import dp_rank_and_size
from lockstep.strategies.ddp import has_same_bits
from lockstep.trainer.steps import batches_trained

_MOST_SAMPLES = 1 << 20  # of a batch of unknown size


def draw_alike_in_setup(source: Any) -> None:
    """Make `setup` of a datamodule or a model draw numbers by the run's seed alone, in every process and stage: a split that is
    drawn in `setup` is then always the same.

    Lightning calls prepare_data in one process only, its DDP reseeds before that, and a test comes after training.
    """
    source.setup = partial(_set_up, source.setup, torch.initial_seed())  # a partial can be pickled, for spawned data workers


def _set_up(setup: Callable[..., None], seed: int, *arguments: Any, **named: Any) -> None:
    seed_generators(seed)
    setup(*arguments, **named)


class CounterBasedRandomness(Callback):
    """Seed the generators of torch, numpy and Python from (seed, epoch, batch, rank) at every training batch, and before the
    first, because data workers take their seeds from them. Tell lockstep.noise which batch it draws for.

    Except for lockstep.noise and lockstep.nets.Dropout, ranks draw different numbers. A batch's draws do not depend on earlier
    draws.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._loader: Any = None  # the first training loader
        self._step: noise.Step | None = None  # the training batch

    def count(self, trainer: Trainer, batch_idx: int) -> None:
        """Seed the generators for a batch of the current epoch; -1 stands for before the first."""
        seed = derive_seed(self.seed, trainer.current_epoch, batch_idx, dp_rank_and_size(trainer)[0])
        seed_generators(seed)
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin here too, because Lightning does not start the epoch again when a run is resumed within it."""
        layers = [layer for layer in pl_module.modules() if isinstance(layer, Dropout) and layer.p > 0]
        for stream, layer in enumerate(layers, noise.FIRST_LAYER):
            layer.stream = stream
        self._begin_epoch(trainer, batches_trained(trainer))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.count(trainer, -1)
        self._begin_epoch(trainer, 0)

    def _begin_epoch(self, trainer: Any, batch_idx: int) -> None:
        self._loader = next(iter(CombinedLoader(trainer.train_dataloader).flattened), None)
        self.begin(trainer, batch_idx)

    def begin(self, trainer: Any, batch_idx: int) -> None:
        """Begin a batch before its hooks, which may augment it."""
        self._step = _step(trainer, self._loader, batch_idx, self.seed, trainer.current_epoch)
        noise.begin(self._step)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.count(trainer, batch_idx)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.begin(trainer, batch_idx + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        noise.begin(None)

    def on_validation_start(self, trainer: Any, pl_module: LightningModule) -> None:
        loaders = {"test": trainer.test_dataloaders, "predict": trainer.predict_dataloaders}
        self._eval_loaders = CombinedLoader(loaders.get(trainer.state.stage, trainer.val_dataloaders)).flattened

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin a batch with the same noise in each evaluation. Virtual workers are seeded by their strategy."""
        if has_same_bits(trainer):
            return
        noise.begin(_step(trainer, self._eval_loaders[dataloader_idx], batch_idx, derive_seed(self.seed, 1 + dataloader_idx), 0))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        noise.begin(self._step if trainer.state.fn == "fit" else None)

    on_test_start = on_predict_start = on_validation_start
    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_end = on_predict_end = on_validation_end


def _step(trainer: Any, loader: Any, batch_idx: int, seed: int, epoch: int) -> noise.Step:
    """Return the samples of a batch, as the loader's sampler divides them among ranks."""
    rank, ranks = dp_rank_and_size(trainer)
    sampler: Any = getattr(loader, "sampler", None)
    if not hasattr(sampler, "samples_in"):  # it is not a SharedSampler
        return noise.Step(seed, epoch, batch_idx * _MOST_SAMPLES, rank, ranks)
    size = sampler.samples_in(batch_idx)[1]
    return noise.Step(seed, epoch, batch_idx * sampler.global_batch_size, rank, ranks, size)
