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
    is_followed = True  # its store is in torchrun's process

    def rank(self, env: Mapping[str, str]) -> Rank | None:
        return super().rank(env) if "TORCHELASTIC_RUN_ID" in env else None

    def run_id(self, rank: Rank) -> str:
        """Return the rendezvous id, which is the same whichever nodes come and go. Without one, which is for one node alone, the
        run is known by the torchrun process."""
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
