"""Gives back to Lightning what lockstep.trainer.lightning_internals has taken out: a flag, broadcast before every batch."""

from lightning import Callback, LightningModule, Trainer


class LightningsFlag(Callback):
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor
