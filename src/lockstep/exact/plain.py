"""A LightningModule and data that know nothing of this package, as virtual workers."""

from typing import Any

from lightning import LightningModule, Trainer

from lockstep.errors import config_error
from lockstep.exact.lightning_internals import WorkerLogs
from lockstep.exact.loaders import workers_loader
from lockstep.plain_lightning.callback import PlainLightning, PlainLightningGuard
from lockstep.runs.shares import dp_rank_and_size
from lockstep.trainer.lightning_internals import log_batch_as


class PlainWorkers(PlainLightning):
    """Share batches out over virtual workers, and reduce what they log. The strategy weights their losses, counts their random
    draws, and restores their buffers."""

    def _combine_processes(self, trainer: Any, model: LightningModule) -> None:
        self._logs = WorkerLogs.replace_in(trainer, self.warn)

    def _share(self, trainer: Any, loader: Any, name: str, training: bool) -> Any:
        share, workers = dp_rank_and_size(trainer), trainer.strategy.workers
        shared = workers_loader(loader, share, workers // share[1], self.seed, training)
        if shared is None:
            why = f"{name} returns a {type(loader).__name__} that reads a stream, or draws batches in its own way"
            needs = f"{why}; use a torch.utils.data.DataLoader with a sampler that has a length, or null"
            raise config_error("trainer.exact", workers, needs)
        return shared

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._count_whole_batch(trainer)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._count_whole_batch(trainer)

    def on_test_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._count_whole_batch(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._logs.add_before()
        self.samples_trained += sum(share.samples for share in trainer.strategy.shares)

    def _count_whole_batch(self, trainer: Any) -> None:
        """Count logs of the hooks around the workers' steps as of the whole batch, in every process."""
        log_batch_as(trainer, trainer.strategy.shares[0].whole)


class PlainWorkersGuard(PlainLightningGuard):
    """Add PlainWorkers to the trainer in the place of PlainLightning."""

    kind = PlainWorkers
