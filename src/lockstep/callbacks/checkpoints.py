"""The checkpoint to continue from. The one to use, the best, is Lightning's own ModelCheckpoint."""

from pathlib import Path

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint


class LastCheckpoint(Checkpoint):
    """dirpath/last.ckpt, replaced every n epochs and once more when training ends in between.

    ModelCheckpoint's own save_last writes only when a best checkpoint is saved too (Lightning issue 18931), so that
    "last" may be an epoch long past.
    """

    def __init__(self, dirpath: str, every_n_epochs: int = 1) -> None:
        self.path = Path(dirpath) / "last.ckpt"
        self.every_n_epochs = every_n_epochs
        self._saved_step: int | None = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saved_step != trainer.global_step:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        self._saved_step = trainer.global_step
        trainer.save_checkpoint(self.path)
