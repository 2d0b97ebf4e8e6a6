"""How the processes of DDP share gradients, where it is not by its all-reduce."""

import logging
from abc import ABC, abstractmethod
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

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


def load_communication(communication: Communication | None, checkpoint: dict[str, Any], rank: int, world_size: int) -> None:
    """Continues from the state that a checkpoint carries. What another communication has left there is dropped, which is said."""
    if communication is not None:
        communication.load_state(checkpoint, rank, world_size)
    if (left := checkpoint.pop("communication", None)) is not None:
        log.info(f"trainer.strategy.communication: what the checkpoint carries of {left[0]['kind']} is dropped")
