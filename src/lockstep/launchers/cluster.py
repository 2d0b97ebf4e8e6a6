"""Who starts the ranks of a run, or lends it machines, beside Lockstep's own parent: those of CLUSTERS."""

import functools
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.utils import get_class

from lockstep.errors import ConfigError

# Who can have started this process as a rank, or lend its machine, by what the names of its variables begin with. The first that
# has started it counts.
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
    """The base class, which is right for ranks of Lockstep's own parent, on a machine that nobody lends for a time only.

    name: as a person knows it.
    program: that starts the ranks.
    restarts: the variable that says how often they have been started again.
    rank_variables: those that a rank has from it, which the ranks of a parent of our own must not have.
    ranks_are_tasks: its ranks are the tasks of a job in a queue. Each is asked to stop by itself, no process looks after all of
        them, and a requeue starts all of them again, in the same run directory.
    """

    name: ClassVar[str] = "parent"
    program: ClassVar[str] = "torchrun"  # whose variables our own parent sets
    restarts: ClassVar[str] = "LOCKSTEP_RESTARTS"
    rank_variables: ClassVar[Sequence[str]] = ()
    ranks_are_tasks: ClassVar[bool] = False

    def rank(self, env: Mapping[str, str]) -> Rank | None:
        """Returns the rank that an environment describes, None where this has not started the process as one. Raises ConfigError
        where variables are missing or wrong."""
        world_size = self.read(env, "WORLD_SIZE", least=1)
        here = self.read(env, "LOCAL_WORLD_SIZE", default=world_size, least=1)
        return Rank(self.name, self.read(env, "RANK"), self.read(env, "LOCAL_RANK"), world_size, world_size // here)

    def read(self, env: Mapping[str, str], name: str, default: int | None = None, least: int = 0) -> int:
        """Returns the number that a variable holds. Raises ConfigError where another program has left only some of them."""
        value = env.get(name, default)
        try:
            number = int(value)  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError):
            problem = "=: is not set" if value is None else f"={value}: is not a number"
        else:
            if number >= least:
                return number
            problem = f"={value}: is less than {least}"
        raise ConfigError(f"{name}{problem}; accepted is the environment of {self.program}, all of it or nothing of it")

    def run_id(self, rank: Rank) -> str:
        """Returns a name for the run that its ranks agree on and no other run has: by the process that has started them all."""
        parent = os.getppid()
        return f"{self.name}-{platform.node()}-{parent}-{start_time(parent)}"

    def rendezvous(self) -> str | None:
        """Returns the name under which ranks that come later meet the others, None where they can't."""

    def attach(self) -> int | None:
        """Called first in a rank of it. Returns a descriptor that can be read when what has started the rank has ended, for it to
        end too; None where it need not."""

    def lightning_environment(self) -> Any:
        """Returns the same for Lightning, which would guess wrong inside a job of one task."""
        from lightning.fabric.plugins.environments import LightningEnvironment

        return LightningEnvironment()

    def speaks(self, directory: Path, rank: int) -> bool:
        """Returns whether this rank says that the run in a directory was preempted, and has it requeued."""
        return rank == 0

    def job(self) -> dict[str, Any]:
        """Returns which job of a queue this process is a part of, and in which of its lives, for status.json; nothing outside of
        one."""
        return {}

    def has_written(self, status: Mapping[str, Any]) -> bool:
        """Returns whether a status.json is of this job, in whichever of its lives."""
        return False

    def within_job(self, seconds: float) -> float:
        """Returns how long a run that is asked to stop now may take: `seconds`, or less if its job ends sooner."""
        return seconds

    def requeue_when_warned(self, number: int, keeps_directory: bool) -> str | None:
        """Puts the job back into the queue if the signal has warned of its end, and if it will come to its run directory again.
        Returns a line that says what was done."""


def clusters(env: Mapping[str, str] = os.environ) -> list[Cluster]:
    """Return those of CLUSTERS that have left variables in an environment."""
    return [_create(target) for prefix, target in CLUSTERS.items() if any(name.startswith(prefix) for name in env)]


def queue() -> Cluster:
    """Returns the one in whose job this process is."""
    return next((cluster for cluster in clusters() if cluster.job()), Cluster())


def start_time(pid: int) -> int:
    """Returns when a process began, in clock ticks since boot; 0 where there is no /proc."""
    try:
        return int(stat(pid)[19])
    except OSError:
        return 0


def stat(pid: int) -> list[str]:
    """Returns the fields of proc(5) from the third on: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
