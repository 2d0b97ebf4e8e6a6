"""What a classifier of images sees and mistakes, as pictures in TensorBoard."""

from collections.abc import Sequence
from typing import Any

import numpy
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL.Image import Image
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from lockstep.datamodules.batches import Batch
from lockstep.errors import check_at_least
from lockstep.extras.monitors.monitor import Monitor, together
from lockstep.extras.pictures.drawing import confusion, gallery
from lockstep.models import Classifier
from lockstep.runs.shares import is_first_of_share


class Pictures(Monitor, Callback):
    """`val/samples`: some validation images, each with its class and the predicted one, at the end of training;
    `test/confusion`: the confusion matrix over the whole test set, rows the true classes."""

    def __init__(self, samples: int = 16) -> None:
        check_at_least(1, samples=samples)
        self.samples = samples
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None
        self._confusion: MulticlassConfusionMatrix | None = None

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if batch_idx == 0 and _writer(trainer) is not None and _has_images(pl_module, batch) and isinstance(outputs, Tensor):
            n = self.samples
            self._kept = (batch.inputs[:n], batch.targets[:n], outputs[:n].argmax(dim=1))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        writer = _writer(trainer)
        if trainer.is_global_zero and writer is not None and self._kept is not None and isinstance(pl_module, Classifier):
            names = _class_names(pl_module)
            _add(writer, "val/samples", gallery(*self._kept, names), trainer.global_step - 1)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._confusion = None

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not (isinstance(pl_module, Classifier) and isinstance(batch, Batch) and isinstance(outputs, Tensor)):
            return
        self._confusion = matrix = self._confusion or _confusion_matrix(pl_module)
        if len(batch.ids) and is_first_of_share(trainer):
            matrix.update(outputs, batch.targets)

    @together
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(pl_module, Classifier):
            return
        own = self.synchronize(trainer, lambda: (self._confusion or _confusion_matrix(pl_module)).confmat)
        if own is None:
            return
        counts: Any = trainer.strategy.reduce(own, reduce_op="sum")
        if trainer.is_global_zero and (writer := _writer(trainer)) is not None and counts.any():
            _add(writer, "test/confusion", confusion(counts, _class_names(pl_module)), trainer.global_step)


def _writer(trainer: Trainer) -> Any:
    """TensorBoard's SummaryWriter, if the run has one."""
    return next((logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)), None)


def _add(writer: Any, tag: str, picture: Image, step: int) -> None:
    writer.add_image(tag, numpy.asarray(picture), step, dataformats="HWC")


def _has_images(model: LightningModule, batch: Any) -> bool:
    return isinstance(model, Classifier) and isinstance(batch, Batch) and batch.inputs.ndim == 4 and len(batch.ids) > 0


def _confusion_matrix(model: Classifier) -> Any:
    return MulticlassConfusionMatrix(model.spec.num_outputs).to(model.device)


def _class_names(model: Classifier) -> Sequence[str]:
    """Each in one line."""
    return [" ".join(str(name).split()) for name in model.spec.class_names or range(model.spec.num_outputs)]
