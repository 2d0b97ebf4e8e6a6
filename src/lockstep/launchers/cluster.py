"""Launchers and queues. CLUSTERS lists those, beside Lockstep's own parent, that start a run's ranks or allocate its nodes."""

import functools
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.utils import get_class

# Classes of launchers and queues, by the prefix of the environment variables that they set. If several apply, the first one
# that has started this process as a rank is used.
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
        """Number of processes per node, and number of nodes."""
        return self.world_size // self.num_nodes, self.num_nodes


class Cluster:
    """Base class; it describes ranks of Lockstep's own parent on a machine without a queue.

    name: name for the user.
    restarts: environment variable with the number of restarts of the ranks.
    is_followed: True if ranks must end when the process that started them ends.
    ranks_are_tasks: True if ranks are the tasks of a queue's job. Each receives its own stop signal, no process watches all of
        them, and a requeue restarts all of them in the same run directory.
    """

    name: ClassVar[str] = "parent"
    restarts: ClassVar[str] = "LOCKSTEP_RESTARTS"
    is_followed: ClassVar[bool] = False
    ranks_are_tasks: ClassVar[bool] = False

    def rank(self, env: Mapping[str, str]) -> Rank | None:
        """Return the rank that the environment describes; None if this launcher has not started the process."""
        world_size = int(env["WORLD_SIZE"])
        num_nodes = world_size // int(env.get("LOCAL_WORLD_SIZE", world_size))
        return Rank(self.name, int(env["RANK"]), int(env["LOCAL_RANK"]), world_size, num_nodes)

    def run_id(self, rank: Rank) -> str:
        """Return a unique name for the run, equal on all ranks: it is made from the process that started them."""
        parent = os.getppid()
        began = stat(parent)[19] if Path("/proc").is_dir() else ""  # pids are reused
        return f"{self.name}-{platform.node()}-{parent}-{began}"

    def is_elastic(self) -> bool:
        """True if ranks may join the rendezvous later, with their own count of restarts."""
        return False

    def lightning_environment(self) -> Any:
        """Return Lightning's description of this environment; Lightning would guess wrong inside a job of one task."""
        from lightning.fabric.plugins.environments import LightningEnvironment

        return LightningEnvironment()

    def job(self) -> dict[str, Any]:
        """Return, for status.json, the queue's job that this process belongs to and how often it was requeued; {} outside of a
        job."""
        return {}

    def requeue_when_warned(self, number: int, keeps_directory: bool) -> str | None:
        """Requeue the job if the signal has warned of its end and it will use the same run directory. Return a line for the log,
        or None."""


def clusters(env: Mapping[str, str] = os.environ) -> list[Cluster]:
    """Return the clusters whose variables are set in the environment."""
    return [_create(target) for prefix, target in CLUSTERS.items() if any(name.startswith(prefix) for name in env)]


def queue() -> Cluster:
    """Return the queue that owns this job; the base class outside of a job."""
    return next((cluster for cluster in clusters() if cluster.job()), Cluster())


def stat(pid: int) -> list[str]:
    """Return the fields of proc(5) from the third on: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
