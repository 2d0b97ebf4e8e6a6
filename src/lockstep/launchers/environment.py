"""What the environment says about this process: which rank it is, who started it, which run it belongs to."""

import contextlib
import functools
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omegaconf import OmegaConf

from lockstep.atomic_files import replace_text
from lockstep.errors import ConfigError

PARENT_PIPE = "LOCKSTEP_PARENT_PIPE"  # a file descriptor that closes when the parent dies
SWEEP_PIPE = "LOCKSTEP_SWEEP_PIPE"  # the same for a job and its sweep
JOB_MARK = "LOCKSTEP_JOB"  # by which what a sweep's job has started is known, wherever it has gone
SWEPT_KEYS = "LOCKSTEP_SWEPT_KEYS"  # those in which the jobs of a sweep may differ, for one of them
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
RESTARTS = "LOCKSTEP_RESTARTS"  # how often our own parent has started these ranks again
ERROR_DIR = "LOCKSTEP_ERROR_DIR"  # where a rank leaves its traceback for the parent, and who it is for the others
# Set by other launchers; a rank of our own parent must not take itself for one of theirs.
FOREIGN = ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS_PER_NODE", "GROUP_RANK")
# In which processes that are started from here may differ although they have imported the same.
OF_EACH_PROCESS = frozenset({*RANK_VARIABLES, *FOREIGN, PARENT_PIPE, SWEEP_PIPE, JOB_MARK, SWEPT_KEYS, RESTARTS, ERROR_DIR})
OF_EACH_PROCESS |= {"CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME"}


_NOTE = ".life"  # the suffix of the files that tell which process is which rank


@dataclass(frozen=True)
class Rank:
    """One of a run's processes, started by somebody else."""

    started_by: Literal["parent", "torchrun", "slurm"]
    global_rank: int
    local_rank: int
    world_size: int
    num_nodes: int

    @property
    def started(self) -> tuple[int, int]:
        """The processes of each node, and the nodes."""
        return self.world_size // self.num_nodes, self.num_nodes


@functools.cache
def this_rank() -> Rank | None:
    """The rank this process was started as; None where nobody has started ranks yet.

    Read once: Lightning removes some of the variables when a stage ends.
    """
    return rank_in(os.environ)


def rank_in(env: Mapping[str, str]) -> Rank | None:
    """The rank that an environment describes.

    Variables: torch/distributed/run.py for torchrun; the OUTPUT ENVIRONMENT VARIABLES of srun(1) for SLURM.
    A SLURM job of one task counts as a plain machine: several devices in it are started by our own parent.
    """
    if PARENT_PIPE in env:
        return _from_torch_variables(env, "parent")
    if "TORCHELASTIC_RUN_ID" in env:
        return _from_torch_variables(env, "torchrun")
    if _integer(env, "SLURM_NTASKS", 1) > 1 and "SLURM_PROCID" in env:
        if env.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in env:
            raise ConfigError(f"SLURM_NTASKS={env['SLURM_NTASKS']}: inside sbatch, start it with `srun python train.py ...`")
        if "SLURM_NTASKS_PER_NODE" not in env:
            raise ConfigError(
                f"SLURM_NTASKS={env['SLURM_NTASKS']}: give --ntasks-per-node to srun or sbatch, which Lightning needs"
            )
        return Rank(
            started_by="slurm",
            global_rank=_integer(env, "SLURM_PROCID"),
            local_rank=_integer(env, "SLURM_LOCALID"),
            world_size=_integer(env, "SLURM_NTASKS"),
            num_nodes=_integer(env, "SLURM_NNODES", 1, least=1),
        )
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):  # which Lightning reads whoever has set them
        _integer(env, name, 0)
    return None


def _from_torch_variables(env: Mapping[str, str], started_by: Literal["parent", "torchrun"]) -> Rank:
    world_size = _integer(env, "WORLD_SIZE", least=1)
    here = _integer(env, "LOCAL_WORLD_SIZE", world_size, least=1)
    num_nodes = world_size // here
    if started_by == "torchrun" and (nodes := _integer(env, "GROUP_WORLD_SIZE", num_nodes)) * here != world_size:
        raise ConfigError(
            f"torchrun --nproc-per-node={here}: {nodes} nodes have {world_size} processes; accepted is as many on each of them"
        )
    return Rank(started_by, _integer(env, "RANK"), _integer(env, "LOCAL_RANK"), world_size, num_nodes)


def _integer(env: Mapping[str, str], name: str, default: int | None = None, least: int = 0) -> int:
    """A variable that torchrun or srun sets. Raises ConfigError where another program has left only some of them."""
    value = env.get(name, default)
    try:
        number = int(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        problem = "=: is not set" if value is None else f"={value}: is not a number"
    else:
        if number >= least:
            return number
        problem = f"={value}: is less than {least}"
    launcher = "srun" if name.startswith("SLURM_") else "torchrun"
    raise ConfigError(f"{name}{problem}; accepted is the environment of {launcher}, all of it or nothing of it")


def is_rank_zero() -> bool:
    rank = this_rank()
    return rank is None or rank.global_rank == 0


class RankZeroFilter(logging.Filter):
    """Lets only rank zero speak on the terminal; the parent of several ranks speaks too."""

    def filter(self, record: logging.LogRecord) -> bool:
        return is_rank_zero()


def run_id() -> str:
    """A name for this run that its ranks agree on and no other run has.

    Our own parent passes its directory on instead. Under srun it is the job step, under torchrun the rendezvous id, which is
    the same whichever nodes come and go; without one, which is for one node alone, the torchrun process.
    """
    rank = this_rank()
    if rank is None:
        return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(3)}"
    if rank.started_by == "slurm":
        return f"slurm-{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_STEP_ID', '0')}"
    if (rendezvous := rendezvous_id()) is not None:
        return f"torchrun-{rendezvous}"
    if rank.num_nodes > 1:
        raise ConfigError("torchrun --rdzv-id=none: on several nodes give an id of your own, the same on every node")
    agent = os.getppid()  # the torchrun process, parent of all ranks of this node
    return f"torchrun-{socket.gethostname()}-{agent}-{_start_time(agent)}"


def rendezvous_id() -> str | None:
    """The --rdzv-id of the torchrun that has started this rank; None without one."""
    rank, name = this_rank(), os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return None if rank is None or rank.started_by != "torchrun" or name == "none" else name


def _start_time(pid: int) -> int:
    """When a process began, in clock ticks since boot; 0 where there is no /proc."""
    try:
        return int(_stat(pid)[19])
    except OSError:
        return 0


def _stat(pid: int) -> list[str]:
    """The fields of proc(5) from the third on: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def dead_ranks() -> list[int]:
    """Returns the ranks of this run that have died, if all were started beside this process and there is a /proc to look into."""
    rank = this_rank()
    if rank is not None and rank.started_by == "parent":
        notes = {int(path.stem): path.read_text() for path in Path(os.environ[ERROR_DIR]).glob("*" + _NOTE)}
        return sorted(other for other, note in notes.items() if note != _process_key(int(note.split()[0])))
    alive = {other.global_rank for env in _sibling_environments() if (other := rank_in(env)) is not None}
    if rank is None or rank.num_nodes > 1 or rank.global_rank not in alive:
        return []
    return sorted(set(range(rank.world_size)) - alive)


def note_life() -> None:
    """Leaves a note for `dead_ranks` in the other ranks, if our own parent has started this one."""
    rank = this_rank() if ERROR_DIR in os.environ else None
    if rank is not None and (life := _process_key(os.getpid())) is not None:
        replace_text(Path(os.environ[ERROR_DIR]) / f"{rank.global_rank}{_NOTE}", life)


def _process_key(pid: int) -> str | None:
    """Returns the number of a process and when it began, which tell it from all others; None if it has died or can't be read."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{pid} {fields[19]}"


def _sibling_environments() -> Iterator[dict[str, str]]:
    """Yields what each process was started with that this one's parent has started, this one included."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended since
            if int(_stat(int(folder.name))[1]) == os.getppid():
                text = (folder / "environ").read_text(errors="replace")
                yield dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


def rank_log() -> str:
    """The log file of this process inside the run directory."""
    rank = this_rank()
    return "train.log" if rank is None or rank.global_rank == 0 else f"train.rank{rank.global_rank}.log"


def restarts() -> int:
    """How often these ranks have been started again, in the same run directory: by our parent, torchrun, or a requeue."""
    return max(_integer(os.environ, name, 0) for name in (RESTARTS, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


def can_resume() -> bool:
    """Returns whether these ranks' run may have begun before, in the same directory: a node that comes to a rendezvous later
    counts no restarts, and may have rank zero."""
    return restarts() > 0 or rendezvous_id() is not None


def output_subdir(resume: str | None, run_dir: str) -> str | None:
    """Where Hydra saves the composed config: written by one process of the run, by the parent if there is one; a run that
    is continued keeps what the first start has written."""
    if (resume is not None or can_resume()) and (Path(run_dir) / ".hydra" / "config.yaml").is_file():
        return None
    rank = this_rank()
    return ".hydra" if rank is None or (rank.global_rank == 0 and rank.started_by != "parent") else None


def register_resolvers() -> None:
    """Makes ${run_id:}, ${rank_log:} and ${output_subdir:} known to the configs under conf/hydra."""
    OmegaConf.register_new_resolver("run_id", run_id, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("rank_log", rank_log, replace=True)
    OmegaConf.register_new_resolver("output_subdir", output_subdir, replace=True)
