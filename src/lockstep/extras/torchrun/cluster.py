"""A run whose ranks torchrun has started."""

import os
from collections.abc import Mapping
from typing import Any

from lockstep.errors import ConfigError
from lockstep.launchers.cluster import Cluster, Rank


class Torchrun(Cluster):
    """torchrun; its variables are those of torch/distributed/run.py."""

    name = "torchrun"
    restarts = "TORCHELASTIC_RESTART_COUNT"

    def rank(self, env: Mapping[str, str]) -> Rank | None:
        if "TORCHELASTIC_RUN_ID" not in env:
            return None
        world_size = self.read(env, "WORLD_SIZE", least=1)
        here = self.read(env, "LOCAL_WORLD_SIZE", default=world_size, least=1)
        if (nodes := self.read(env, "GROUP_WORLD_SIZE", default=world_size // here)) * here != world_size:
            problem = f"{nodes} nodes have {world_size} processes; use as many on each of them"
            raise ConfigError(f"torchrun --nproc-per-node={here}: {problem}")
        return super().rank(env)

    def run_id(self, rank: Rank) -> str:
        """Return the rendezvous id, which is the same whichever nodes come and go. Without one, which is for one node alone, the
        run is known by the torchrun process."""
        if (rendezvous := self.rendezvous()) is not None:
            return f"torchrun-{rendezvous}"
        if rank.num_nodes > 1:
            raise ConfigError("torchrun --rdzv-id=none: on several nodes give an id of your own, the same on every node")
        return super().run_id(rank)

    def rendezvous(self) -> str | None:
        return None if (name := os.environ["TORCHELASTIC_RUN_ID"]) == "none" else name

    def attach(self) -> int | None:
        return os.pidfd_open(os.getppid()) if hasattr(os, "pidfd_open") else None  # its store is in there

    def lightning_environment(self) -> Any:
        from lightning.fabric.plugins.environments import TorchElasticEnvironment

        return TorchElasticEnvironment()
