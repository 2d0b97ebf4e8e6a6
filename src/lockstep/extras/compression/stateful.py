"""Communication that carries something from step to step, which the checkpoint keeps for each rank."""

import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.apply_func import move_data_to_device

from lockstep.extras.compression.strategy import Communication

log = logging.getLogger(__name__)
_KEY = "communication"  # in a checkpoint: a list of each rank's state


class StatefulCommunication(Communication):
    """One of another `kind` begins anew, and says so."""

    kind: str

    @abstractmethod
    def save(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Returns this rank's state in plain containers. A collective; may change the checkpoint, which is for all ranks."""

    @abstractmethod
    def load(self, checkpoint: dict[str, Any], ranks: Sequence[Any], rank: int, world_size: int) -> None:
        """Continues from what `save` has returned on each rank, of which there may be more or fewer now; may change the
        checkpoint to this rank's."""

    def save_state(self, checkpoint: dict[str, Any]) -> None:
        state = {"kind": self.kind} | self.save(checkpoint)
        ranks = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(move_data_to_device(state, torch.device("cpu")), ranks)
        checkpoint[_KEY] = ranks

    def load_state(self, checkpoint: dict[str, Any], rank: int, world_size: int) -> None:
        if (ranks := checkpoint.pop(_KEY, None)) is None:
            return
        if (saved := ranks[0]["kind"]) == self.kind:
            self.load(checkpoint, ranks, rank, world_size)
        else:
            log.info(
                f"trainer.strategy.communication: what the checkpoint carries of {saved} is dropped: {self.kind} begins anew"
            )
