"""SLURM's commands: sbatch, squeue, scontrol and scancel.

Not by submitit: it keeps the numbers of jobs in the memory of the process that has submitted them, unpickles a function where a
sweep's job is a command line, and asks sacct alone, which says nothing on a cluster without accounting.
"""

import subprocess
from typing import Any, NamedTuple

PATIENCE = 60.0  # seconds that one of them may take
# The states, of JOB STATE CODES in squeue(1), of a job that is over.
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}


class SlurmError(RuntimeError):
    """A command has failed, in its words, or the controller does not answer."""


class Task(NamedTuple):
    """A job in the queue. reason: why it waits. nodes: n[1-2], say."""

    id: str
    state: str
    reason: str = ""
    nodes: str = ""


def tasks(prefix: str) -> dict[str, Task]:
    """Return one's own jobs whose names begin so, by name; those too that have ended some minutes ago. Raise SlurmError."""
    result = {}
    for line in answer("squeue", "--me", "--states=all", "--noheader", "--format=%A|%j|%T|%r|%N").splitlines():
        job, name, state, reason, nodes = line.split("|")
        if name.startswith(prefix):
            result[name] = Task(job, state, "" if reason == "None" else reason, nodes)
    return result


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
