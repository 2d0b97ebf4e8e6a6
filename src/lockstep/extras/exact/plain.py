"""A LightningModule and data that know nothing of this package, as virtual workers."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden

from lockstep.errors import config_error
from lockstep.extras.any_batch.any_batch import samples_in
from lockstep.extras.exact.lightning_internals import reduce_logs_of_workers
from lockstep.extras.exact.loaders import workers_loader
from lockstep.extras.plain_lightning.callback import PlainLightning
from lockstep.extras.plain_lightning.lightning_internals import log_batch_as
from lockstep.runs.shares import dp_rank_and_size


class PlainWorkers(PlainLightning):
    """Share batches out over virtual workers, and reduce what they log. The strategy weights their losses, counts their random
    draws, and restores their buffers."""

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        """Raise ConfigError for a hook that would get the batches of several workers."""
        for source in (pl_module, trainer.datamodule):
            if is_overridden("on_before_batch_transfer", source):
                why = f"{type(source).__name__}.on_before_batch_transfer would get the batches of several virtual workers at once"
                raise config_error("trainer.exact", trainer.strategy.workers, f"{why}; use on_after_batch_transfer, or null")
        super().setup(trainer, pl_module, stage)

    def _combine_processes(self, trainer: Any, model: LightningModule) -> None:
        self._logs = reduce_logs_of_workers(trainer, self.warn)

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
        shares = trainer.strategy.shares
        self.samples_trained += (samples_in(batch) or 0) if shares is None else sum(share.samples for share in shares)

    def _count_whole_batch(self, trainer: Any) -> None:
        """Count logs of the hooks around the workers' steps as of the whole batch, in every process."""
        if trainer.strategy.shares is not None:
            log_batch_as(trainer, trainer.strategy.shares[0].whole)
