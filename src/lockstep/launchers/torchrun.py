"""Ranks that torchrun has started."""

import os
from collections.abc import Mapping
from typing import Any

from lockstep.errors import ConfigError
from lockstep.launchers.environment import Cluster, Rank


class Torchrun(Cluster):
    """torchrun, with the variables of torch/distributed/run.py."""

    name = "torchrun"
    restarts = "TORCHELASTIC_RESTART_COUNT"
    is_followed = True  # torchrun's process holds the store

    def rank(self, env: Mapping[str, str]) -> Rank | None:
        return super().rank(env) if "TORCHELASTIC_RUN_ID" in env else None

    def run_id(self, rank: Rank) -> str:
        """Return a name from the rendezvous id, which stays the same when nodes join or leave. Without an id, on a single node,
        the name is made from the torchrun process."""
        if self.is_elastic():
            return f"torchrun-{os.environ['TORCHELASTIC_RUN_ID']}"
        if rank.num_nodes > 1:
            raise ConfigError("torchrun --rdzv-id=none: on several nodes give an id of your own, the same on every node")
        return super().run_id(rank)

    def is_elastic(self) -> bool:
        return os.environ["TORCHELASTIC_RUN_ID"] != "none"

    def lightning_environment(self) -> Any:
        from lightning.fabric.plugins.environments import TorchElasticEnvironment

        return TorchElasticEnvironment()
