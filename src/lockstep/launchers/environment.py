"""What the environment says about this process: which rank it is, who started it, which run it belongs to."""

import contextlib
import functools
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from omegaconf import OmegaConf

from lockstep.config.modes import register_mode_resolvers
from lockstep.launchers.cluster import Cluster, Rank, clusters, stat

PARENT_PIPE = "LOCKSTEP_PARENT_PIPE"  # a file descriptor that closes when the parent dies
SWEEP_PIPE = "LOCKSTEP_SWEEP_PIPE"  # the same for a job and its sweep
JOB_MARK = "LOCKSTEP_JOB"  # by which what a sweep's job has started is known, wherever it has gone
SWEPT_KEYS = "LOCKSTEP_SWEPT_KEYS"  # those in which the jobs of a sweep may differ, for one of them
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
RESTARTS = Cluster.restarts  # how often our own parent has started these ranks again
ERROR_DIR = "LOCKSTEP_ERROR_DIR"  # where a rank leaves its traceback for the parent, and who it is for the others
PIDS = "pids"  # the file there that names each rank's process, in their order


@functools.cache
def this_rank() -> Rank | None:
    """The rank this process was started as; None where nobody has started ranks yet.

    Read once: Lightning removes some of the variables when a stage ends.
    """
    return rank_in(os.environ)


def rank_in(env: Mapping[str, str]) -> Rank | None:
    """The rank that an environment describes."""
    if PARENT_PIPE in env:
        return Cluster().rank(env)
    if rank := next(filter(None, (cluster.rank(env) for cluster in clusters(env))), None):
        return rank
    for name in ("RANK", "LOCAL_RANK"):  # which Lightning reads whoever has set them
        Cluster().read(env, name, default=0)
    return None


def without_rank_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which nobody takes itself for a rank that a cluster has started."""
    foreign = {name for cluster in clusters(env) for name in cluster.rank_variables}
    return {name: value for name, value in env.items() if name not in foreign}


def launcher() -> Cluster:
    """Who has started this process as a rank."""
    rank = this_rank()
    return next((cluster for cluster in clusters() if rank is not None and cluster.name == rank.started_by), Cluster())


def is_rank_zero() -> bool:
    rank = this_rank()
    return rank is None or rank.global_rank == 0


class RankZeroFilter(logging.Filter):
    """Lets only rank zero speak on the terminal; the parent of several ranks speaks too."""

    def filter(self, record: logging.LogRecord) -> bool:
        return is_rank_zero()


def run_id() -> str:
    """A name for this run that its ranks agree on and no other run has. Our own parent passes its directory on instead."""
    if (rank := this_rank()) is not None:
        return launcher().run_id(rank)
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(3)}"


def dead_ranks() -> list[int]:
    """Returns the ranks of this run that have died, if all were started beside this process and there is a /proc to look into."""
    if (rank := this_rank()) is None or rank.num_nodes > 1:
        return []
    alive = set(_living_ranks(rank))
    return sorted(set(range(rank.world_size)) - alive) if rank.global_rank in alive else []


def _living_ranks(rank: Rank) -> Iterator[int]:
    """Yields those that this one's parent has started. Our own names their processes: a fork does not show its environment."""
    if rank.started_by == Cluster.name:
        for other, pid in enumerate((Path(os.environ[ERROR_DIR]) / PIDS).read_text().split()):
            with contextlib.suppress(OSError):  # it has ended
                if stat(int(pid))[0] not in "ZX":
                    yield other
        return
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended since
            if int(stat(int(folder.name))[1]) == os.getppid():
                items = (folder / "environ").read_text(errors="replace").split("\0")
                if (other := rank_in(dict(item.split("=", 1) for item in items if "=" in item))) is not None:
                    yield other.global_rank


def rank_log() -> str:
    """The log file of this process inside the run directory."""
    rank = this_rank()
    return f"train.rank{rank.global_rank}.log" if rank is not None and rank.global_rank else "train.log"


def restarts() -> int:
    """How often these ranks have been started again, in the same run directory: by our parent, torchrun, or a requeue."""
    return max(cluster.read(os.environ, cluster.restarts, default=0) for cluster in (Cluster(), *clusters()))


def can_resume() -> bool:
    """Returns whether these ranks' run may have begun before, in the same directory: a node that comes to a rendezvous later
    counts no restarts, and may have rank zero."""
    return restarts() > 0 or launcher().rendezvous() is not None


def output_subdir(resume: str | None, run_dir: str) -> str | None:
    """Returns where Hydra saves the composed config: it is written by one process of the run, by the parent if there is one; a
    run that is continued keeps what the first start has written."""
    if (resume is not None or can_resume()) and (Path(run_dir) / ".hydra" / "config.yaml").is_file():
        return None
    rank = this_rank()
    return ".hydra" if rank is None or (rank.global_rank == 0 and rank.started_by != "parent") else None


def register_resolvers() -> None:
    """Makes ${run_id:}, ${rank_log:} and ${output_subdir:} known to the configs under conf/hydra, and modes to those of runs."""
    register_mode_resolvers()
    OmegaConf.register_new_resolver("run_id", run_id, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("rank_log", rank_log, replace=True)
    OmegaConf.register_new_resolver("output_subdir", output_subdir, replace=True)
