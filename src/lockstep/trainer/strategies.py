"""How processes work together: Lightning's strategies, set by config."""

import os
import socket
from datetime import timedelta
from inspect import signature
from typing import Any

import torch.distributed
from lightning import Trainer
from lightning.pytorch.strategies import DDPStrategy, ParallelStrategy
from torch.nn.parallel import DistributedDataParallel

from lockstep.errors import ConfigError, config_error
from lockstep.launchers.environment import this_rank
from lockstep.trainer.communication import Communication, load_communication


class PlannedWorldSize(ParallelStrategy):
    """Stands before one of Lightning's strategies: refuses a process group of another size than planned."""

    planned_world_size: int
    serves_one_process = False  # else Lightning's own for one process takes its place
    has_same_bits = False  # on any number of processes

    def setup_environment(self) -> None:
        store = _store_on_loopback()
        super().setup_environment()
        del store  # Lightning's own is the same by now
        launched: Any = self
        sizes = {
            "the config": self.planned_world_size,
            "the trainer": launched.num_nodes * launched.num_processes,
            "the process group": torch.distributed.get_world_size(),
        }
        if len(set(sizes.values())) > 1:
            words = ", ".join(f"{name} says {size}" for name, size in sizes.items())
            raise ConfigError(f"the world size is not one number: {words}")


class DDP(PlannedWorldSize, DDPStrategy):
    """Lightning's DDPStrategy with a timeout in seconds.

    Keyword arguments go to torch.nn.parallel.DistributedDataParallel; `communication` is in the place of its all-reduce.
    """

    def __init__(
        self,
        *,
        world_size: int,
        timeout: float,
        process_group_backend: str | None,
        communication: Communication | None = None,
        **ddp: Any,
    ) -> None:
        if not isinstance(communication, Communication | None):
            accepted = "accepted is null, or a group: trainer/communication=OPTION chooses one"
            raise config_error("trainer.strategy.communication", communication, accepted)
        accepted = signature(DistributedDataParallel).parameters.keys() | signature(DDPStrategy).parameters.keys()
        for name in ddp.keys() - accepted:
            raise config_error(
                f"trainer.strategy.{name}", ddp[name], f"no such argument; accepted are {', '.join(sorted(accepted))}"
            )
        super().__init__(timeout=timedelta(seconds=timeout), process_group_backend=process_group_backend, **ddp)
        self.planned_world_size, self.communication = world_size, communication

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


def _store_on_loopback() -> torch.distributed.TCPStore | None:
    """Serves the key-value store of a run's ranks, in rank zero on one machine. The one that torch makes for MASTER_ADDR
    listens on every interface, unless there is one at that port in this process already: it then shares it."""
    rank = this_rank()
    is_elsewhere = rank is None or rank.started_by != "parent" or rank.global_rank > 0
    if is_elsewhere or torch.distributed.is_initialized():
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = socket.create_server((address, port)).detach()  # it is the store's from here on
    options: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "multi_tenant": True, "master_listen_fd": listener}
    try:
        return torch.distributed.TCPStore(address, port, **options)
    except NotImplementedError:  # torch 2.6: its libuv backend takes no socket, the one before it does
        return torch.distributed.TCPStore(address, port, **options, use_libuv=False)
