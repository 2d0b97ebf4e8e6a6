"""What a classifier of images sees and mistakes, as pictures in TensorBoard."""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from lockstep.datamodules.batches import Batch
from lockstep.models import Classifier
from lockstep.runs.shares import is_first_of_share


class Pictures(Callback):
    """`val/samples`: some validation images, each with its class and the predicted one, at the end of training;
    `test/confusion`: the confusion matrix over the whole test set, rows the true classes."""

    def __init__(self, samples: int = 16) -> None:
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
            names = pl_module.spec.class_names or [str(i) for i in range(pl_module.spec.num_outputs)]
            writer.add_figure("val/samples", _gallery(*self._kept, names), trainer.global_step - 1)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._confusion = None

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not (isinstance(pl_module, Classifier) and isinstance(batch, Batch) and isinstance(outputs, Tensor)):
            return
        if self._confusion is None:
            self._confusion = MulticlassConfusionMatrix(pl_module.spec.num_outputs).to(pl_module.device)
        if len(batch.ids) and is_first_of_share(trainer):
            self._confusion.update(outputs, batch.targets)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._confusion is None:
            return
        self._confusion.compute()  # on every rank: sums the counts
        if trainer.is_global_zero and (writer := _writer(trainer)) is not None and isinstance(pl_module, Classifier):
            labels = list(pl_module.spec.class_names or []) or None
            figure, _ = self._confusion.plot(labels=labels, add_text=pl_module.spec.num_outputs <= 20)
            writer.add_figure("test/confusion", figure, trainer.global_step)


def _writer(trainer: Trainer) -> Any:
    """TensorBoard's SummaryWriter, if the run has one."""
    return next((logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)), None)


def _has_images(model: LightningModule, batch: Any) -> bool:
    return isinstance(model, Classifier) and isinstance(batch, Batch) and batch.inputs.ndim == 4 and len(batch.ids) > 0


def _gallery(images: Tensor, targets: Tensor, predictions: Tensor, names: Any) -> Any:
    """A figure with one small image per sample; wrong predictions in red. All on one axis: one for each takes a second to lay
    out, at the end of every run."""
    from matplotlib.figure import Figure

    columns = min(8, len(images))
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(1.4 * columns, 1.7 * rows))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.axis("off")
    for place, (image, target, prediction) in enumerate(zip(images.cpu(), targets.tolist(), predictions.tolist(), strict=True)):
        top, left = 1.2 * (place // columns), place % columns
        pixels = image.float() / 255 if image.dtype == torch.uint8 else image
        box = (left + 0.05, left + 0.95, top + 1.1, top + 0.2)
        axis.imshow(pixels.permute(1, 2, 0).clamp(0, 1).squeeze(-1), cmap="gray", extent=box, aspect="auto")
        title = names[target] if target == prediction else f"{names[target]} as {names[prediction]}"
        axis.text(left + 0.5, top + 0.15, title, fontsize=8, ha="center", color="black" if target == prediction else "red")
    axis.set(xlim=(0, columns), ylim=(1.2 * rows, 0))  # which an image changes
    return figure
