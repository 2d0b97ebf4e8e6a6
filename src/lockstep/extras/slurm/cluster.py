"""A run in a job of SLURM's: which rank srun has started, how long the job may still run, and putting it back into the queue."""

import os
import re
import signal
from collections.abc import Mapping
from typing import Any

from lockstep.errors import ConfigError
from lockstep.extras.slurm.commands import Unanswered, answer, parse_seconds
from lockstep.launchers.cluster import Cluster, Rank

SPARED = 20.0  # seconds before SLURM ends a job that a run which is stuck leaves: the job has to be requeued until then
_PATIENCE = 10.0  # seconds that SLURM may take to say how long there is


class Slurm(Cluster):
    """The variables are the OUTPUT ENVIRONMENT VARIABLES of srun(1). A job of one task counts as a plain machine."""

    name = "slurm"
    restarts = "SLURM_RESTART_COUNT"
    ranks_are_tasks = True

    def rank(self, env: Mapping[str, str]) -> Rank | None:
        world_size, rank = int(env.get("SLURM_NTASKS", 1)), int(env.get("SLURM_PROCID", 0))
        if world_size == 1 or "SLURM_PROCID" not in env:
            return None
        if env.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in env:
            raise ConfigError(f"SLURM_NTASKS={world_size}: inside sbatch, start it with `srun python train.py ...`")
        if "SLURM_NTASKS_PER_NODE" not in env:
            words = "give --ntasks-per-node to srun or sbatch, which Lightning needs"
            raise ConfigError(f"SLURM_NTASKS={world_size}: {words}")
        return Rank(self.name, rank, int(env["SLURM_LOCALID"]), world_size, int(env.get("SLURM_NNODES", 1)))

    def run_id(self, rank: Rank) -> str:
        """The job's step."""
        return f"slurm-{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_STEP_ID', '0')}"

    def lightning_environment(self) -> Any:
        from lightning.pytorch.plugins.environments import SLURMEnvironment

        return SLURMEnvironment(auto_requeue=False)

    def job(self) -> dict[str, Any]:
        restarts = int(os.environ.get(self.restarts, 0))
        return {} if (name := job_name()) is None else {"slurm_job": name, "slurm_restarts": restarts}

    def within_job(self, seconds: float) -> float:
        left = _seconds_left()
        return min(seconds, max(left - SPARED, left / 2))

    def requeue_when_warned(self, number: int, keeps_directory: bool) -> str | None:
        """SIGUSR1 is the warning. Under SIGTERM it is SLURM that decides: a cancelled job would come back to life."""
        if (name := job_name()) is None or number != signal.SIGUSR1:
            return None
        if not keeps_directory:
            return f"SLURM job {name} was not requeued: it would begin anew, in another directory; give hydra.run.dir"
        refusal = requeue(name)
        return f"SLURM job {name} is requeued" if refusal is None else f"SLURM job {name} was not requeued: {refusal}"


def job_name() -> str | None:
    """Returns the job's id as SLURM's commands take it, 12 or 12_3; None outside of a job."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def _seconds_left() -> float:
    """Returns the seconds until the job's time limit, which its preemption brings forward; KillWait of slurm.conf(5) if SLURM is
    ending it already; infinity if there is no limit, no job, or no answer."""
    try:
        state, left = state_of_job()
        if state == "RUNNING":
            return parse_seconds(left) if re.match("[0-9]", left) else float("inf")
        kill_wait = re.search(r"^KillWait\s*=\s*(\d+)", answer("scontrol", "show", "config", patience=_PATIENCE), re.MULTILINE)
    except Unanswered:
        return float("inf")
    return float("inf") if kill_wait is None or not state else float(kill_wait[1])


def state_of_job() -> tuple[str, str]:
    """Returns the job's state, one of JOB STATE CODES in squeue(1), and what is left of its time; empty strings outside of a job.
    Raises Unanswered."""
    if (name := job_name()) is None:
        return "", ""
    query = ("squeue", "--noheader", "--states=all", f"--jobs={name}", "--format=%T|%L")
    state, _, left = answer(*query, patience=_PATIENCE).strip().partition("|")
    return state, left


def requeue(name: str) -> str | None:
    """Puts a job back into the queue, which ends this process if that is a part of it. Returns why it could not, else None."""
    try:
        answer("scontrol", "requeue", name)
    except Unanswered as error:
        return str(error).removeprefix("scontrol: ")
    return None
