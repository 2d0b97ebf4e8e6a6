"""The parts of a training step."""

from abc import abstractmethod
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lockstep.extras.monitors.monitor import Monitor


class StepParts(Monitor, Callback):
    """Says when a part of a step begins: "data" when the batch before is done with, "forward", "backward", "rest" after the
    gradients, "optimizer"; or a "validation" within an epoch.

    In the order of callbacks it is to be the last but for those that save checkpoints: then what the others do before a
    batch is not in its "forward" pass.
    """

    @abstractmethod
    def begin(self, part: str) -> None:
        """A part begins, and the one before ends."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.begin("forward")

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self.begin("backward")

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.begin("rest")

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self.begin("optimizer")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.begin("data")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.begin("validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.begin("data")
