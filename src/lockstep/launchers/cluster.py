"""Launchers and queues beside Lockstep's own parent: CLUSTERS names those that start a run's ranks or lend it machines."""

import functools
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.utils import get_class

# Classes of launchers and queues by the prefix of the variables that they set. If several have set some, the first that
# has started this process as a rank counts.
CLUSTERS = {
    "TORCHELASTIC_": "lockstep.launchers.torchrun.Torchrun",
    "SLURM_": "lockstep.slurm.cluster.Slurm",
}
_create = functools.cache(lambda target: get_class(target)())


@dataclass(frozen=True)
class Rank:
    """One of a run's processes. `started_by` is the name of a cluster, or parent."""

    started_by: str
    global_rank: int
    local_rank: int
    world_size: int
    num_nodes: int

    @property
    def started(self) -> tuple[int, int]:
        """The processes of each node, and the nodes."""
        return self.world_size // self.num_nodes, self.num_nodes


class Cluster:
    """Base class, which is right for ranks of Lockstep's own parent on a machine that no queue lends.

    name: as a person knows it.
    restarts: the variable that says how often the ranks have been started again.
    is_followed: its ranks have to end when the process that started them has ended.
    ranks_are_tasks: its ranks are the tasks of a job in a queue. Each is asked to stop by itself, no process looks after all of
        them, and a requeue starts all of them again, in the same run directory.
    """

    name: ClassVar[str] = "parent"
    restarts: ClassVar[str] = "LOCKSTEP_RESTARTS"
    is_followed: ClassVar[bool] = False
    ranks_are_tasks: ClassVar[bool] = False

    def rank(self, env: Mapping[str, str]) -> Rank | None:
        """Return the rank that an environment describes; None if this launcher has not started the process."""
        world_size = int(env["WORLD_SIZE"])
        num_nodes = world_size // int(env.get("LOCAL_WORLD_SIZE", world_size))
        return Rank(self.name, int(env["RANK"]), int(env["LOCAL_RANK"]), world_size, num_nodes)

    def run_id(self, rank: Rank) -> str:
        """Return a name for the run that its ranks agree on and no other run has: by the process that has started them all."""
        parent = os.getppid()
        began = stat(parent)[19] if Path("/proc").is_dir() else ""  # pids are used again
        return f"{self.name}-{platform.node()}-{parent}-{began}"

    def is_elastic(self) -> bool:
        """True if ranks may come later and meet the others, with a count of restarts of their own."""
        return False

    def lightning_environment(self) -> Any:
        """Return Lightning's description of this environment; it would guess wrong inside a job of one task."""
        from lightning.fabric.plugins.environments import LightningEnvironment

        return LightningEnvironment()

    def job(self) -> dict[str, Any]:
        """Return the job of a queue that this process is a part of, and the number of its life, for status.json; {} outside of a
        job."""
        return {}

    def requeue_when_warned(self, number: int, keeps_directory: bool) -> str | None:
        """Requeue the job if the signal has warned of its end, and if it will come to its run directory again. Return a line that
        says what was done."""


def clusters(env: Mapping[str, str] = os.environ) -> list[Cluster]:
    """Return the clusters that have left variables in an environment."""
    return [_create(target) for prefix, target in CLUSTERS.items() if any(name.startswith(prefix) for name in env)]


def queue() -> Cluster:
    """Return the queue that owns this job; the base class outside of a job."""
    return next((cluster for cluster in clusters() if cluster.job()), Cluster())


def stat(pid: int) -> list[str]:
    """Return the fields of proc(5) from the third on: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
