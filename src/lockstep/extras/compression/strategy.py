"""DDP whose processes share gradients in another way than by its all-reduce."""

import logging
from abc import ABC, abstractmethod
from typing import Any

from lightning import Trainer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lockstep.errors import config_error
from lockstep.trainer.strategies import DDP

log = logging.getLogger(__name__)


class Communication(ABC):
    """What `trainer.strategy.communication` may be."""

    cause: str  # why several processes do not give the result of one, in one line

    @abstractmethod
    def register(self, model: DistributedDataParallel) -> None:
        """Registers hooks on the model, before the first step and after a checkpoint is loaded."""

    def attach(self, optimizer: Optimizer) -> None:  # noqa: B027 - most have nothing to do then
        """Registers hooks on an optimizer of the training that begins."""

    def synchronize(self) -> None:  # noqa: B027
        """Makes the model the same on every process, before a validation and when training ends."""

    def save_state(self, checkpoint: dict[str, Any]) -> None:  # noqa: B027
        """Adds what it carries from step to step to rank zero's checkpoint, as `communication`; a collective."""

    def load_state(self, checkpoint: dict[str, Any], rank: int, world_size: int) -> None:  # noqa: B027
        """Takes its state out of a checkpoint."""


class CommunicatingDDP(DDP):
    """Keyword arguments are those of DDP. With `communication` null it is DDP."""

    def __init__(self, *, communication: Communication | None, **ddp: Any) -> None:
        if not isinstance(communication, Communication | None):
            accepted = "accepted is null, or a group: trainer/communication=OPTION chooses one"
            raise config_error("trainer.strategy.communication", communication, accepted)
        super().__init__(**ddp)
        self.communication = communication

    def configure_ddp(self) -> None:
        super().configure_ddp()
        if self.communication is not None:
            model: Any = self.model
            self.communication.register(model)

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        if self.communication is not None:
            for optimizer in self.optimizers:
                self.communication.attach(optimizer)

    def on_validation_start(self) -> None:
        if self.communication is not None and self._is_fitting:
            self.communication.synchronize()

    def on_train_end(self) -> None:
        """After callbacks have saved what a longer run goes on from."""
        if self.communication is not None:
            self.communication.synchronize()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        if self.communication is not None:
            self.communication.save_state(checkpoint)
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        if self._is_fitting:
            load_communication(self.communication, checkpoint, self.global_rank, self.world_size)
        checkpoint.pop("communication", None)
        return checkpoint

    @property
    def _is_fitting(self) -> bool:
        model = self.lightning_module
        return model is not None and model.trainer.state.fn == "fit"


def load_communication(communication: Communication | None, checkpoint: dict[str, Any], rank: int, world_size: int) -> None:
    """Continues from the state that a checkpoint carries. What another communication has left there is dropped, which is said."""
    if communication is not None:
        communication.load_state(checkpoint, rank, world_size)
    if (left := checkpoint.pop("communication", None)) is not None:
        log.info(f"trainer.strategy.communication: what the checkpoint carries of {left[0]['kind']} is dropped")
