"""How the processes of DDP share what they have learned from their parts of a batch, where it is not by its all-reduce."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

log = logging.getLogger(__name__)
_KEY = "communication"  # in a checkpoint: a list of each rank's state


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


class StatefulCommunication(Communication):
    """Carries something from step to step, which is kept for each rank in the checkpoint."""

    kind: str  # only one of the same kind can continue from what is saved

    @abstractmethod
    def save(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Returns this rank's state in plain containers. A collective; may change the checkpoint, which is for all ranks."""

    @abstractmethod
    def load(self, checkpoint: dict[str, Any], ranks: Sequence[Any], rank: int, world_size: int) -> None:
        """Continues from what `save` has returned on each rank, of which there may be more or fewer now; may change the
        checkpoint to this rank's."""


def save_communication(communication: Communication | None, checkpoint: dict[str, Any]) -> None:
    """Adds every rank's state to rank zero's checkpoint; a collective."""
    if isinstance(communication, StatefulCommunication):
        state = {"kind": communication.kind} | communication.save(checkpoint)
        ranks = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(move_data_to_device(state, torch.device("cpu")), ranks)
        checkpoint[_KEY] = ranks


def load_communication(communication: Communication | None, checkpoint: dict[str, Any], rank: int, world_size: int) -> None:
    """Continues from what ranks of the same kind have saved; another kind begins anew, and says so."""
    if (ranks := checkpoint.get(_KEY)) is None:
        return
    saved, current = ranks[0].get("kind"), getattr(communication, "kind", None)
    if isinstance(communication, StatefulCommunication) and saved == current:
        communication.load(checkpoint, ranks, rank, world_size)
    else:
        dropped = "is dropped" if current is None else f"is dropped: {current} begins anew"
        log.info(f"trainer.strategy.communication: what the checkpoint carries of {saved or 'an earlier version'} {dropped}")
