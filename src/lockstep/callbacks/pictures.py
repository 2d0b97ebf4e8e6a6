"""The confusion matrix of the test set, as a picture in TensorBoard."""

from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from lockstep.callbacks.monitor import Monitor, watched_to_the_end
from lockstep.models import Classifier
from lockstep.plain_lightning.processes import all_ranks
from lockstep.runs.shares import is_first_of_share

NAMED = 20  # classes up to which the matrix shows their names and numbers


class Pictures(Monitor, Callback):
    """Log the confusion matrix of all processes' samples as test/confusion; rows are the true classes."""

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, Classifier):
            self._matrix = MulticlassConfusionMatrix(pl_module.spec.num_outputs, sync_on_compute=False).to(pl_module.device)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if isinstance(pl_module, Classifier) and isinstance(outputs, Tensor) and is_first_of_share(trainer):
            self._matrix.update(outputs, batch[1])

    @watched_to_the_end  # a process whose monitor is off takes part in the collective
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(pl_module, Classifier):
            return
        ranks = all_ranks(None if self.is_off else self._matrix.confmat.cpu())
        if any(rank is None for rank in ranks):
            raise RuntimeError("it is off on another rank")
        counts: Any = sum(ranks)
        writer = next((logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)), None)
        if trainer.is_global_zero and writer is not None and counts.any():
            axes = Figure(figsize=(7, 7), dpi=70).add_axes((0.18, 0.14, 0.8, 0.84))  # a layout takes as long as all else
            names = [str(name) for name in pl_module.spec.class_names or range(len(counts))] if len(counts) <= NAMED else None
            figure, _ = self._matrix.plot(counts, axes, add_text=names is not None, labels=names, cmap="Blues")
            writer.add_figure("test/confusion", figure, trainer.global_step)
