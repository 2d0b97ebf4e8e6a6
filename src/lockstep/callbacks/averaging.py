"""Averages of the weights over training."""

from collections.abc import Callable
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor, nn

from lockstep.callbacks.checkpoints import find_last_checkpoint


class EMA(EMAWeightAveraging):
    """Lightning's exponential moving average of the weights, which is validated, saved as `state_dict`, and used.

    Until it begins these are the current weights. When training ends it becomes the model. The state to continue from is saved
    before that, so that a run prolonged later goes on from the weights that were trained.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self._average_model is not None:
            self._average_model.avg_fn = _or_current(self._average_model.avg_fn)

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Shard the average as the strategy shards the model, if it has a method `parallelize`. The model is on its device by
        now; when Lightning copied it, it was on the CPU."""
        assert self._average_model is not None
        getattr(trainer.strategy, "parallelize", lambda _: None)(self._average_model.module)
        _bring(self._average_model, pl_module.device)
        for own, current in zip(self._average_model.module.buffers(), pl_module.buffers(), strict=True):
            if not _is_averaged(own):  # some that no checkpoint has were set after the copy was made
                own.copy_(current)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":  # Lightning would test the weights that were not averaged, after a fit of its own
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
        """End also if nothing was left to train: Lightning then passes over on_train_end."""
        self._follow(pl_module)
        super().on_train_end(trainer, pl_module)

    def _follow(self, module: LightningModule) -> None:
        """Copy the current weights into an average that has not begun: it is of the time before training."""
        if (average := self._average_model) is not None and not average.n_averaged:
            pairs = ((average.module.parameters(), module.parameters()), (average.module.buffers(), module.buffers()))
            for own, current in (tensors for pair in pairs for tensors in zip(*pair, strict=True)):
                own.data.copy_(current.data)


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _or_current(average: Callable[..., Any] | None) -> Callable[[Tensor, Tensor, Any], Any]:
    """Average floating-point numbers, and take the current value of integers: 0.9 * 3 + 0.1 * 3 would be cut to 2."""
    assert average is not None
    return lambda own, current, count: average(own, current, count) if _is_averaged(own) else current


def _bring(module: nn.Module, device: torch.device) -> None:
    """Move a module to a device, except for layers on the meta device, such as those of another stage of a pipeline."""
    if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        for child in module.children():
            _bring(child, device)
    else:
        module.to(device)
