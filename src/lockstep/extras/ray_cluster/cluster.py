"""The Ray that a sweep uses: one of its own on this machine, or a cluster of somebody else's, which is left as it is."""

import contextlib
import importlib
import os
import signal
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.config.plan import cores
from lockstep.errors import config_error
from lockstep.extras.ray_cluster.settings import LOCAL, RaySettings, Share
from lockstep.extras.ray_cluster.worker import JobWorker
from lockstep.launchers.stop_signals import Preempted

_OBJECT_STORE = 80 * 2**20  # bytes, little more than Ray's minimum: jobs put nothing into it


class RayCluster:
    """Is connected to when it is first needed."""

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings

    @cached_property
    def ray(self) -> Any:
        """The module, connected. Raises ConfigError where there is no such cluster."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings = self.settings
        options: dict[str, Any] = {"address": settings.address, "log_to_driver": False, "logging_level": "ERROR"}
        if settings.address == LOCAL:
            options |= {"num_cpus": settings.num_cpus or len(cores()), "object_store_memory": _OBJECT_STORE}
            options |= {"include_dashboard": False}
        with _own_signals():
            ray = importlib.import_module("ray")
            try:
                ray.init(**options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                words = f"{' '.join(str(error).split())}; accepted is local, or the address of a cluster that runs"
                raise config_error("hydra.launcher.address", settings.address, words) from error
        return ray

    def nodes(self) -> list[dict[str, float]]:
        """Returns the resources of each node that is alive, whether they are in use or not."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def place(self, share: Share) -> tuple[Any, list[Any]]:
        """Asks for a share; returns the placement group, None for one node, and an actor on each node."""
        amounts, actor = dict(share.amounts), self.ray.remote(JobWorker)
        options = {"num_cpus": amounts["CPU"], "num_gpus": amounts.get("GPU", 0), "max_concurrency": 2}
        if share.nodes == 1:
            return None, [actor.options(**options).remote(str(Path.cwd()))]
        util = importlib.import_module("ray.util")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        group = util.placement_group([amounts] * share.nodes, strategy="STRICT_SPREAD")
        places = [strategies.PlacementGroupSchedulingStrategy(group, index) for index in range(share.nodes)]
        return group, [actor.options(**options, scheduling_strategy=place).remote(str(Path.cwd())) for place in places]

    def release(self, group: Any, actors: list[Any]) -> None:
        """Ends actors, with what they run, and gives back their share."""
        for actor in actors:
            self.ray.kill(actor)
        if group is not None:
            importlib.import_module("ray.util").remove_placement_group(group)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps this process's answer to SIGTERM, which ray.init replaces by its own, sys.exit(15)."""
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as left:
        if left.code == signal.SIGTERM:
            raise Preempted(signal.SIGTERM) from left
        raise
    finally:
        signal.signal(signal.SIGTERM, kept)
