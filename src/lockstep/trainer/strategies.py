"""How processes work together: Lightning's DDP, set by config."""

from datetime import timedelta
from inspect import signature
from typing import Any

import torch.distributed
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from lockstep.errors import ConfigError, config_error


class DDP(DDPStrategy):
    """Lightning's DDPStrategy with a timeout in seconds, that refuses a process group of another size than planned.

    Keyword arguments go to torch.nn.parallel.DistributedDataParallel.
    """

    def __init__(self, *, world_size: int, timeout: float, process_group_backend: str | None, **ddp: Any) -> None:
        accepted = signature(DistributedDataParallel).parameters.keys() | signature(DDPStrategy).parameters.keys()
        for name in ddp.keys() - accepted:
            raise config_error(
                f"trainer.strategy.{name}", ddp[name], f"no such argument; accepted are {', '.join(sorted(accepted))}"
            )
        super().__init__(timeout=timedelta(seconds=timeout), process_group_backend=process_group_backend, **ddp)
        self.planned_world_size = world_size

    def setup_environment(self) -> None:
        super().setup_environment()
        sizes = {
            "the config": self.planned_world_size,
            "the trainer": self.num_nodes * self.num_processes,
            "the process group": torch.distributed.get_world_size(),
        }
        if len(set(sizes.values())) > 1:
            words = ", ".join(f"{name} says {size}" for name, size in sizes.items())
            raise ConfigError(f"the world size is not one number: {words}")
