"""Launchers and queues beside Lockstep's own parent: CLUSTERS names those that start a run's ranks or lend it machines."""

import contextlib
import functools
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.utils import get_class

from lockstep.errors import config_error

# Classes of launchers and queues by the prefix of the variables that they set. If several have set some, the first that
# has started this process as a rank counts.
CLUSTERS = {
    "TORCHELASTIC_": "lockstep.extras.torchrun.cluster.Torchrun",
    "SLURM_": "lockstep.extras.slurm.cluster.Slurm",
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
    program: that starts the ranks.
    restarts: the variable that says how often they have been started again.
    rank_variables: those that a rank has from it, which the ranks of a parent of our own must not have.
    ranks_are_tasks: its ranks are the tasks of a job in a queue. Each is asked to stop by itself, no process looks after all of
        them, and a requeue starts all of them again, in the same run directory.
    """

    name: ClassVar[str] = "parent"
    program: ClassVar[str] = "torchrun"  # Lockstep's own parent sets the same variables
    restarts: ClassVar[str] = "LOCKSTEP_RESTARTS"
    rank_variables: ClassVar[Sequence[str]] = ()
    ranks_are_tasks: ClassVar[bool] = False

    def rank(self, env: Mapping[str, str]) -> Rank | None:
        """Return the rank that an environment describes; None if this launcher has not started the process. Raises ConfigError if
        variables are missing or wrong."""
        world_size = self.read(env, "WORLD_SIZE", least=1)
        here = self.read(env, "LOCAL_WORLD_SIZE", default=world_size, least=1)
        return Rank(self.name, self.read(env, "RANK"), self.read(env, "LOCAL_RANK"), world_size, world_size // here)

    def read(self, env: Mapping[str, str], name: str, default: int | None = None, least: int = 0) -> int:
        """Return the number that a variable holds. Raises ConfigError if another program has left only some of them."""
        with contextlib.suppress(TypeError, ValueError):
            if (number := int(env.get(name, default))) >= least:  # pyright: ignore[reportArgumentType]
                return number
        accepted = f"use the environment of {self.program}, all of it or nothing of it"
        raise config_error(name, env.get(name, ""), f"is no number of at least {least}; {accepted}")

    def run_id(self, rank: Rank) -> str:
        """Return a name for the run that its ranks agree on and no other run has: by the process that has started them all."""
        parent = os.getppid()
        return f"{self.name}-{platform.node()}-{parent}-{start_time(parent)}"

    def rendezvous(self) -> str | None:
        """Return the name under which ranks that come later meet the others; None if they can't."""

    def attach(self) -> int | None:
        """Return a descriptor that can be read when the process that started this rank has ended, so that the rank ends too; None
        if it need not. Called first in a rank."""

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


def start_time(pid: int) -> int:
    """Return when a process began, in clock ticks since boot; 0 where there is no /proc."""
    try:
        return int(stat(pid)[19])
    except OSError:
        return 0


def stat(pid: int) -> list[str]:
    """Return the fields of proc(5) from the third on: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
