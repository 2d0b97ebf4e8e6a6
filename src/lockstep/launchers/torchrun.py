"""Ranks that torchrun has started."""

import os
import platform
from typing import Any

from lockstep.errors import ConfigError
from lockstep.launchers.environment import Launcher, Rank
from lockstep.launchers.processes import stat


class Torchrun(Launcher):
    """torchrun, with the variables of torch/distributed/run.py."""

    name = "torchrun"

    def run_id(self, rank: Rank) -> str:
        """Return a name from the rendezvous id, which stays the same when nodes join or leave. Without an id, on a single node,
        the name is made from the torchrun process."""
        if (rendezvous := os.environ["TORCHELASTIC_RUN_ID"]) != "none":
            return f"torchrun-{rendezvous}"
        if rank.num_nodes > 1:
            raise ConfigError("torchrun --rdzv-id=none: on several nodes give an id of your own, the same on every node")
        parent = os.getppid()
        return f"torchrun-{platform.node()}-{parent}-{stat(parent)[19]}"  # and the time of its start, because pids are reused

    def lightning_environment(self) -> Any:
        from lightning.fabric.plugins.environments import TorchElasticEnvironment

        return TorchElasticEnvironment()
