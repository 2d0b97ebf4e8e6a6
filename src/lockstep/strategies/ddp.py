"""Data-parallel training over processes, by Lightning's DDPStrategy."""

from datetime import timedelta
from inspect import signature
from typing import Any

import torch.distributed
from lightning.pytorch.strategies import DDPStrategy, ParallelStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.errors import ConfigError, check_at_least, config_error
from lockstep.runs.shares import EqualBuffers

_BROADCAST = {"broadcast_buffers", "forward_sync_buffers"}  # DDP's argument; torch 2.15 has renamed it


class PlannedWorldSize(ParallelStrategy):
    """Base class before one of Lightning's strategies: refuse a process group of another size than planned.

    Attributes:
        has_same_bits: True if bits do not depend on the number of processes; then it is used on one process, too.
        has_parts: True if a process has only a part of the model, in tensors that are not DTensors.
        communication: Format in which gradients are sent if it has fewer bits than theirs.
    """

    planned_world_size: int
    has_same_bits = False
    has_parts = False
    communication: str | None = None

    def setup_environment(self) -> None:
        super().setup_environment()
        launched: Any = self
        sizes = self.planned_world_size, launched.num_nodes * launched.num_processes, torch.distributed.get_world_size()
        if len(set(sizes)) > 1:
            words = "the config says {}, the trainer says {}, the process group says {}".format(*sizes)
            raise ConfigError(f"the world size is not one number: {words}")

    def parallelize(self, model: Any) -> None:
        """Divide a copy of the model as the model is divided; here it stays whole."""


def has_same_bits(trainer: Any) -> bool:
    """Return whether the trainer's strategy gives the same bits on any number of processes."""
    return isinstance(trainer.strategy, PlannedWorldSize) and trainer.strategy.has_same_bits


class DDP(PlannedWorldSize, DDPStrategy):
    """Lightning's DDPStrategy with a timeout in seconds.

    Keyword arguments go to torch.nn.parallel.DistributedDataParallel.

    Attributes:
        frozen: the parameters whose gradients DDP does not average, for they required none when it wrapped the model.
    """

    def __init__(
        self,
        *,
        world_size: int,
        timeout: float,
        process_group_backend: str | None,
        bucket_cap_mb: float | None = None,
        static_graph: bool = False,
        find_unused_parameters: bool = False,
        **ddp: Any,
    ) -> None:
        check_at_least(1, timeout=timeout)
        check_at_least(0, bucket_cap_mb=bucket_cap_mb)
        accepted = signature(DistributedDataParallel).parameters.keys() | signature(DDPStrategy).parameters.keys()
        for name in ddp.keys() - accepted:  # DDP would say so in the ranks alone
            raise config_error(f"trainer.strategy.{name}", ddp[name], f"no such argument; use {', '.join(sorted(accepted))}")
        ddp |= {"bucket_cap_mb": bucket_cap_mb, "static_graph": static_graph, "find_unused_parameters": find_unused_parameters}
        super().__init__(timeout=timedelta(seconds=timeout), process_group_backend=process_group_backend, **ddp)
        self.planned_world_size, self._may_send_less = world_size, not _BROADCAST & ddp.keys()
        self.frozen: list[nn.Parameter] = []

    def configure_ddp(self) -> None:
        """Leave out the buffers that stay equal by themselves where buffers are sent, unless the config says to send them."""
        super().configure_ddp()
        wrapped: Any = self.model
        ignored = wrapped.parameters_to_ignore
        parameters = (one for name, one in wrapped.module.named_parameters() if name not in ignored)
        self.frozen = [one for one in parameters if not one.requires_grad]
        if self._may_send_less and have_equal_buffers(wrapped.module):
            wrapped.broadcast_buffers = False

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Wrap the model anew if a hook has unfrozen parameters, as Lightning's BaseFinetuning does."""
        if any(one.requires_grad for one in self.frozen):
            self.model = self.lightning_module
            self.configure_ddp()


def have_equal_buffers(model: nn.Module) -> bool:
    """Return whether modules name all buffers of a model in `equal_buffers`: no step changes them, or each changes them equally
    in all processes."""
    layers = ((layer, name) for layer in model.modules() for name, _ in layer.named_buffers(recurse=False))
    return all(isinstance(layer, EqualBuffers) and name in layer.equal_buffers for layer, name in layers)
