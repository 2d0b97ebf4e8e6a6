"""Facts about this process from its environment: its rank, its launcher and queue, and its run."""

import contextlib
import functools
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf

from lockstep.metrics import mode_by_name, mode_for

PARENT_PID = "LOCKSTEP_PARENT"  # the process that started this one as a rank
SWEEP_PIPE = "LOCKSTEP_SWEEP_PIPE"  # a file descriptor of a job on another machine that closes when its sweep dies
RESTARTS = "LOCKSTEP_RESTARTS"  # number of restarts of these ranks by Lockstep's own parent
_RESTARTS = (RESTARTS, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_QUEUE = "SLURM_JOB_ID"
# Launchers beside Lockstep's own parent, by a variable that they set. If several apply, the first one that has started this
# process as a rank is used.
LAUNCHERS = {"TORCHELASTIC_RUN_ID": "lockstep.launchers.torchrun.Torchrun", _QUEUE: "lockstep.slurm.cluster.Slurm"}


class Launcher:
    """Lockstep's own parent; base class of other launchers, which also have `run_id(rank)`, equal on all ranks of a run."""

    name = "parent"

    def rank(self, env: Mapping[str, str]) -> "Rank | None":
        """Return the rank that the environment describes; None if this launcher has not started the process."""
        world_size = int(env["WORLD_SIZE"])
        num_nodes = world_size // int(env.get("LOCAL_WORLD_SIZE", world_size))
        return Rank(self, int(env["RANK"]), int(env["LOCAL_RANK"]), world_size, num_nodes)

    def lightning_environment(self) -> Any:
        """Return Lightning's description of this environment; Lightning would guess wrong inside a job of one task."""
        from lightning.fabric.plugins.environments import LightningEnvironment

        return LightningEnvironment()


@dataclass(frozen=True)
class Rank:
    """One of a run's processes."""

    launcher: Any = field(compare=False)
    global_rank: int
    local_rank: int
    world_size: int
    num_nodes: int

    @property
    def started(self) -> tuple[int, int]:
        """Number of processes per node, and number of nodes."""
        return self.world_size // self.num_nodes, self.num_nodes


@functools.cache
def this_rank() -> Rank | None:
    """Return the rank that this process was started as; None before ranks are started.

    The result is cached, because Lightning removes some of the variables when a stage ends.
    """
    return rank_in(os.environ)


def rank_in(env: Mapping[str, str]) -> Rank | None:
    """Return the rank that the environment describes, or None."""
    if PARENT_PID in env:
        return Launcher().rank(env)
    launchers: list[Launcher] = [get_class(target)() for variable, target in LAUNCHERS.items() if variable in env]
    return next(filter(None, (launcher.rank(env) for launcher in launchers)), None)


def launcher() -> Launcher:
    """Return the launcher that started this rank."""
    rank = this_rank()
    return Launcher() if rank is None else rank.launcher


def queue() -> Any:
    """Return the queue that owns this job; None outside of a job."""
    return get_class(LAUNCHERS[_QUEUE])() if _QUEUE in os.environ else None


def is_rank_zero() -> bool:
    rank = this_rank()
    return rank is None or rank.global_rank == 0


class RankZeroFilter(logging.Filter):
    """Pass only rank zero's lines to the terminal, and those of the parent of several ranks."""

    def filter(self, record: logging.LogRecord) -> bool:
        return is_rank_zero()


def log_plainly() -> None:
    """Set up logging to standard output on rank zero, for scripts, which have no logging config of Hydra."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    logging.getLogger().handlers[0].addFilter(RankZeroFilter())


def run_id() -> str:
    """Return a unique name for this run, equal on all ranks. Ranks of Lockstep's parent get the directory from it instead."""
    if (rank := this_rank()) is not None:
        return rank.launcher.run_id(rank)
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(3)}"


def rank_log() -> str:
    """Log file of this process inside the run directory."""
    rank = this_rank()
    return f"train.rank{rank.global_rank}.log" if rank is not None and rank.global_rank else "train.log"


def restarts() -> int:
    """Number of restarts of these ranks in the same run directory, by Lockstep's parent, torchrun or a requeue."""
    return max(int(os.environ.get(name, 0)) for name in _RESTARTS)


def can_resume() -> bool:
    """Return whether the run of these ranks may have started before in the same directory. A node that joins a rendezvous later
    counts no restarts, but may get rank zero."""
    is_elastic = PARENT_PID not in os.environ and os.environ.get("TORCHELASTIC_RUN_ID", "none") != "none"
    return restarts() > 0 or is_elastic


def cores() -> set[int]:
    """Return the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


@contextlib.contextmanager
def reserved_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Reserve a free port of the address `host`, or of all addresses for "".

    The port is bound but not listened on. With SO_REUSEADDR torch's TCPStore can still listen on it, and the kernel gives it to
    no other process that asks for a free port.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield holder.getsockname()[1]


def rank_environment(world_size: int, port: int) -> dict[str, str]:
    """Return the environment of the ranks that this process starts, without RANK and LOCAL_RANK."""
    environment = os.environ | {PARENT_PID: str(os.getpid())}
    environment |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "NODE_RANK": "0"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(cores()) // world_size)))
    # By default gloo looks up the host's own name, and hangs if it does not resolve (pytorch issue 74316).
    if loopback := next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None):
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback)
    return environment


def register_resolvers() -> None:
    """Register the resolvers that the configs use."""
    OmegaConf.register_new_resolver("run_id", run_id, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("rank_log", rank_log, replace=True)
    OmegaConf.register_new_resolver("mode_by_name", mode_by_name, replace=True)
    OmegaConf.register_new_resolver("mode_for", mode_for, replace=True)
