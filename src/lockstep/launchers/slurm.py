"""SLURM's commands, and the job that this process is a part of: how long it may still run, and putting it back into the queue."""

import os
import re
import signal
import subprocess
from typing import Any

PATIENCE = 60.0  # seconds that one of SLURM's commands may take
SPARED = 20.0  # seconds before SLURM ends a job that a run which is stuck leaves: the job has to be requeued until then
_PATIENCE = 10.0  # seconds that SLURM may take to say how long there is


class Unanswered(RuntimeError):
    """The controller can't be asked now."""


def job_name() -> str | None:
    """Returns the job's id as SLURM's commands take it, 12 or 12_3; None outside of a job."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def within_job(seconds: float) -> float:
    """Returns how long a run that is asked to stop now may take: `seconds`, or less if SLURM ends its job sooner."""
    left = _seconds_left()
    return min(seconds, max(left - SPARED, left / 2))


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


def requeue_when_warned(number: int, keeps_directory: bool) -> str | None:
    """Puts this job back into the queue if SIGUSR1 has warned of its end, and if it will come to its run directory again.
    Returns a line that says what was done.

    Under SIGTERM it is SLURM that decides: a cancelled job would come back to life.
    """
    if (name := job_name()) is None or number != signal.SIGUSR1:
        return None
    if not keeps_directory:
        return f"SLURM job {name} was not requeued: it would begin anew, in another directory; give hydra.run.dir"
    refusal = requeue(name)
    return f"SLURM job {name} is requeued" if refusal is None else f"SLURM job {name} was not requeued: {refusal}"


def requeue(name: str) -> str | None:
    """Puts a job back into the queue, which ends this process if that is a part of it. Returns why it could not, else None."""
    try:
        answer("scontrol", "requeue", name)
    except Unanswered as error:
        return str(error).removeprefix("scontrol: ")
    return None


def answer(*command: str, patience: float = PATIENCE) -> str:
    """Returns the output of one of SLURM's commands. Raises Unanswered if it fails."""
    done = run_slurm(*command, patience=patience)
    if done.returncode:
        raise Unanswered(f"{command[0]}: {' '.join(done.stderr.split()) or f'ended with code {done.returncode}'}")
    return done.stdout


def run_slurm(*command: str, patience: float = PATIENCE, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs one of SLURM's commands in a session of its own, so that Ctrl-C does not end it half-way."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=patience, check=False, start_new_session=True, **options
        )
    except subprocess.TimeoutExpired as error:
        raise Unanswered(f"{command[0]}: no answer within {patience:g} s") from error
    except OSError as error:
        raise Unanswered(f"{command[0]}: {error.strerror}") from error


def parse_seconds(used: str) -> float:
    """1-02:03:04 and 03:04 are days, hours, minutes and seconds."""
    days, _, rest = used.rpartition("-")
    try:
        total = 0
        for part in rest.split(":"):
            total = total * 60 + int(part)
        return float(total + 86400 * int(days or 0))
    except ValueError:  # INVALID, by squeue(1)
        return 0.0
