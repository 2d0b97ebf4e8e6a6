"""A run whose ranks mpirun has started. No library of MPI is used, nor mpi4py, which Lightning's MPIEnvironment needs: mpirun's
variables say which rank this is, and the ranks meet in the run's directory."""

import contextlib
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.config.plan import cores
from lockstep.errors import ConfigError, ExitCode
from lockstep.extras.mpi.meeting import meet
from lockstep.launchers.cluster import Cluster, Rank, start_time, stat
from lockstep.launchers.supervisor import use_loopback
from lockstep.runs.locks import is_held

RANK_ZERO_WITHIN = 60.0  # seconds that rank zero gets to record that the run was preempted


class MPI(Cluster):
    """The base class. A group of one rank counts as a plain machine.

    rank_variables: the rank, how many there are, and both on this host.
    """

    program = "mpirun"

    def rank(self, env: Mapping[str, str]) -> Rank | None:
        rank, size, local_rank, local_size = self.rank_variables
        world_size = self.read(env, size, default=1, least=1)
        if world_size == 1:
            return None
        here = self.read(env, local_size, least=1)
        if world_size % here:
            words = f"{world_size} ranks are not as many on each host; accepted is as many on each of them"
            raise ConfigError(f"{local_size}={here}: {words}")
        return Rank(self.name, self.read(env, rank), self.read(env, local_rank), world_size, world_size // here)

    def run_id(self, rank: Rank) -> str:
        """By the process on this host that has started the ranks."""
        if rank.num_nodes > 1:
            words = "mpirun names no run on several hosts; accepted is a directory on storage that all of them share"
            raise ConfigError(f"hydra.run.dir=null: {words}")
        starter = self._starter()
        return f"{self.name}-{platform.node()}-{starter}-{start_time(starter)}"

    def _starter(self) -> int:
        """Returns the nearest ancestor that is no rank itself: a rank may have been started by a script of the user's."""
        pid, mark = os.getppid(), f"{self.rank_variables[0]}=".encode()
        with contextlib.suppress(OSError):  # there is no /proc
            while any(item.startswith(mark) for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                pid = int(stat(pid)[1])
        return pid

    def attach(self) -> int | None:
        """Also gives each rank its part of the host's cores, where mpirun has not bound it to cores of its own: without that each
        would have as many threads as there are cores."""
        if not hasattr(os, "pidfd_open") or (rank := self.rank(os.environ)) is None:
            return None
        starter = self._starter()
        shared = rank.started[0] if cores() == os.sched_getaffinity(starter) else 1
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(cores()) // shared)))
        return os.pidfd_open(starter)

    def lightning_environment(self, directory: Path) -> Any:
        """Lightning's for torchrun, whose variables say the same."""
        from lightning.fabric.plugins.environments import TorchElasticEnvironment

        rank = self.rank(os.environ)
        assert rank is not None
        if rank.num_nodes == 1:
            use_loopback(os.environ)
        host = os.environ.get("MASTER_ADDR", "127.0.0.1" if rank.num_nodes == 1 else platform.node())
        host, port = meet(directory, rank.global_rank, rank.world_size, host, int(os.environ.get("MASTER_PORT", "0")))
        here, _ = rank.started
        numbers = {"RANK": rank.global_rank, "LOCAL_RANK": rank.local_rank, "WORLD_SIZE": rank.world_size}
        numbers |= {"GROUP_RANK": rank.global_rank // here, "MASTER_PORT": port}
        os.environ |= {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": host}
        return TorchElasticEnvironment()

    def speaks(self, directory: Path, rank: int) -> bool:
        """Rank zero; the others stay until it has left, for then mpirun ends those that are there."""
        deadline = time.monotonic() + RANK_ZERO_WITHIN
        while rank and is_held(directory) and time.monotonic() < deadline:
            time.sleep(0.1)
        return rank == 0


class OpenMPI(MPI):
    """The variables are those of Open MPI's mpirun(1), which ends all ranks when one has left with a code that isn't 0."""

    name = "openmpi"
    rank_variables = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")


class MPICH(MPI):
    """The variables are those of MPICH's process manager Hydra (src/pm/hydra), which Intel MPI has too."""

    name = "mpich"
    rank_variables = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")

    def leave(self, code: Any) -> None:
        """By a line of the protocol between Hydra and its ranks (PMI-1), which are not programs of MPI: of those it ends all when
        one is killed, but waits for the others where one has left by itself."""
        if code in (None, ExitCode.FINISHED, ExitCode.PREEMPTED):
            return
        with contextlib.suppress(KeyError, ValueError, OSError):  # it is gone, or a script has closed its connection
            os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={code if isinstance(code, int) else 1}\n".encode())
