"""Facts about this process from its environment: its rank, the launcher that started it, the run that it belongs to."""

import contextlib
import functools
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping

from omegaconf import OmegaConf

from lockstep.config.metrics import register_mode_resolvers
from lockstep.config.plan import cores
from lockstep.launchers.cluster import Cluster, Rank, clusters

PARENT_PID = "LOCKSTEP_PARENT"  # the process that has started this one as a rank
SWEEP_PIPE = "LOCKSTEP_SWEEP_PIPE"  # a file descriptor of a job on another machine that closes when its sweep dies
SWEPT_KEYS = "LOCKSTEP_SWEPT_KEYS"  # in a job: the keys in which the jobs of its sweep may differ
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
RESTARTS = Cluster.restarts  # how often our own parent has started these ranks again


@functools.cache
def this_rank() -> Rank | None:
    """Return the rank that this process was started as; None where ranks are not started yet.

    Read once: Lightning removes some of the variables when a stage ends.
    """
    return rank_in(os.environ)


def rank_in(env: Mapping[str, str]) -> Rank | None:
    """Return the rank that an environment describes."""
    if PARENT_PID in env:
        return Cluster().rank(env)
    return next(filter(None, (cluster.rank(env) for cluster in clusters(env))), None)


@contextlib.contextmanager
def reserved_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Reserve a free port of the address `host`, or of all addresses for "".

    It is bound but not listened on, so that torch's TCPStore can still listen on it with SO_REUSEADDR, while the kernel gives it
    to nobody else who asks for any free port.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield holder.getsockname()[1]


def rank_environment(world_size: int, port: int) -> dict[str, str]:
    """Return what the ranks of this process find in their environment, less their numbers."""
    environment = os.environ | {PARENT_PID: str(os.getpid())}
    environment |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "NODE_RANK": "0"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(cores()) // world_size)))
    # By itself gloo looks up the host's own name, and hangs where that does not resolve (pytorch issue 74316).
    if loopback := next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None):
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback)
    return environment


def launcher() -> Cluster:
    """Return the launcher that started this rank."""
    rank = this_rank()
    return next((cluster for cluster in clusters() if rank is not None and cluster.name == rank.started_by), Cluster())


def is_rank_zero() -> bool:
    rank = this_rank()
    return rank is None or rank.global_rank == 0


class RankZeroFilter(logging.Filter):
    """Pass only rank zero's lines to the terminal, and those of the parent of several ranks."""

    def filter(self, record: logging.LogRecord) -> bool:
        return is_rank_zero()


def log_plainly() -> None:
    """Log to standard output as scripts do, which have no logging config of Hydra's; rank zero alone."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    logging.getLogger().handlers[0].addFilter(RankZeroFilter())


def run_id() -> str:
    """Return a name for this run that its ranks agree on and no other run has. Our own parent passes its directory instead."""
    if (rank := this_rank()) is not None:
        return launcher().run_id(rank)
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(3)}"


def rank_log() -> str:
    """Log file of this process inside the run directory."""
    rank = this_rank()
    return f"train.rank{rank.global_rank}.log" if rank is not None and rank.global_rank else "train.log"


def restarts() -> int:
    """Number of restarts of these ranks in the same run directory: by our parent, torchrun, or a requeue."""
    return max(int(os.environ.get(cluster.restarts, 0)) for cluster in (Cluster(), *clusters()))


def can_resume() -> bool:
    """Return whether these ranks' run may have begun before, in the same directory: a node that comes to a rendezvous later
    counts no restarts, and may have rank zero."""
    return restarts() > 0 or launcher().is_elastic()


def register_resolvers() -> None:
    """Register ${run_id:} and ${rank_log:} for the configs under conf/hydra, and modes for those of runs."""
    register_mode_resolvers()
    OmegaConf.register_new_resolver("run_id", run_id, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("rank_log", rank_log, replace=True)
