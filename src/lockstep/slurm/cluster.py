"""A run in a job of SLURM's: which rank srun has started, and putting the job back into the queue."""

import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from lockstep.errors import ConfigError
from lockstep.launchers.environment import Launcher, Rank, launcher

PATIENCE = 60.0  # seconds that a command of SLURM's may take


class SlurmError(RuntimeError):
    """A command has failed, in its words, or the controller does not answer."""


def answer(*command: str) -> str:
    """Return the output of one of SLURM's commands, run in a session of its own, so that Ctrl-C does not end it half-way. Raise
    SlurmError if it fails."""
    options: Any = {"capture_output": True, "text": True, "start_new_session": True}
    try:
        done = subprocess.run(command, timeout=PATIENCE, check=False, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]}: {error}") from error
    if done.returncode:
        words = " ".join(done.stderr.split()).removeprefix(f"{command[0]}: ").removeprefix("error: ")
        raise SlurmError(f"{command[0]}: {words or f'ended with code {done.returncode}'}")
    return done.stdout


class Slurm(Launcher):
    """The variables are the OUTPUT ENVIRONMENT VARIABLES of srun(1). A job of one task counts as a plain machine."""

    name = "slurm"

    def rank(self, env: Mapping[str, str]) -> Rank | None:
        world_size, rank = int(env.get("SLURM_NTASKS", 1)), int(env.get("SLURM_PROCID", 0))
        if world_size == 1 or "SLURM_PROCID" not in env:
            return None
        if env.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in env:
            raise ConfigError(f"SLURM_NTASKS={world_size}: inside sbatch, start it with `srun python train.py ...`")
        if "SLURM_NTASKS_PER_NODE" not in env:
            words = "give --ntasks-per-node to srun or sbatch, which Lightning needs"
            raise ConfigError(f"SLURM_NTASKS={world_size}: {words}")
        return Rank(self, rank, int(env["SLURM_LOCALID"]), world_size, int(env.get("SLURM_NNODES", 1)))

    def run_id(self, rank: Rank) -> str:
        """The job's step."""
        return f"slurm-{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_STEP_ID', '0')}"

    def lightning_environment(self) -> Any:
        from lightning.pytorch.plugins.environments import SLURMEnvironment

        return SLURMEnvironment(auto_requeue=False)

    def job(self) -> dict[str, Any]:
        """Return, for status.json, this job and how often it was requeued."""
        return {"slurm_job": os.environ["SLURM_JOB_ID"], "slurm_restarts": int(os.environ.get("SLURM_RESTART_COUNT", 0))}

    def requeue_when_warned(self, number: int, is_named: bool) -> str | None:
        """Requeue the job if SIGUSR1 has warned of its end. Return a line for the log, or None. Under SIGTERM SLURM decides: a
        cancelled job would come back to life.

        `is_named`: the command names the run's directory. If the ranks are the job's tasks, its id does so.
        """
        if number != signal.SIGUSR1:
            return None
        name = os.environ["SLURM_JOB_ID"]
        if not is_named and launcher().name != self.name:
            return f"SLURM job {name} was not requeued: it would begin anew, in another directory; give hydra.run.dir"
        try:
            answer("scontrol", "requeue", name)  # which ends this process
        except SlurmError as error:
            return f"SLURM job {name} was not requeued: {error}"
        return f"SLURM job {name} is requeued"
