"""Averages of the weights over training."""

from collections.abc import Callable
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor

from lockstep.callbacks.checkpoints import find_last_checkpoint
from lockstep.strategies.ddp import PlannedWorldSize


class EMA(EMAWeightAveraging):
    """Lightning's exponential moving average of the weights. The average is validated and saved as `state_dict`.

    Until averaging starts, it equals the current weights. When training ends, the model gets the averaged weights. last.ckpt is
    saved before that, so that a run that is extended later resumes from the weights that were trained.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self._average_model is not None:
            self._average_model.avg_fn = _or_current(self._average_model.avg_fn)

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Divide the average like the model, and move it to the model's device. Lightning copied the model on the CPU."""
        assert self._average_model is not None
        if isinstance(trainer.strategy, PlannedWorldSize):
            trainer.strategy.parallelize(self._average_model.module)
        self._average_model.to(pl_module.device)
        for own, current in zip(self._average_model.module.buffers(), pl_module.buffers(), strict=True):
            if not _is_averaged(own):  # buffers set after the copy, which no checkpoint has
                own.copy_(current)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":  # after a fit, Lightning would test the weights that were not averaged
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follow(pl_module)
        super().on_validation_epoch_start(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._follow(pl_module)
        super().on_save_checkpoint(trainer, pl_module, checkpoint)

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        self._follow(pl_module)
        if (saver := find_last_checkpoint(trainer)) is not None:
            saver.save(trainer)
        super().on_train_end(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finish even if nothing was left to train: Lightning then skips on_train_end."""
        self._follow(pl_module)
        super().on_train_end(trainer, pl_module)

    def _follow(self, module: LightningModule) -> None:
        """Copy the current weights into the average until averaging starts."""
        if (average := self._average_model) is not None and not average.n_averaged:
            pairs = ((average.module.parameters(), module.parameters()), (average.module.buffers(), module.buffers()))
            for own, current in (tensors for pair in pairs for tensors in zip(*pair, strict=True)):
                own.data.copy_(current.data)


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _or_current(average: Callable[..., Any] | None) -> Callable[[Tensor, Tensor, Any], Any]:
    """Average floating-point numbers, and take the current value of integers, as 0.9 * 3 + 0.1 * 3 would be truncated to 2."""
    assert average is not None
    return lambda own, current, count: average(own, current, count) if _is_averaged(own) else current
