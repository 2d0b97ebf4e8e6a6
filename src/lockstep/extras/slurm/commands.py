"""SLURM's commands: sbatch, squeue, scontrol and scancel.

Not by submitit: it keeps the numbers of jobs in the memory of the process that has submitted them, unpickles a function where a
sweep's job is a command line, and asks sacct alone, which says nothing on a cluster without accounting.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds that one of them may take
# The states, of JOB STATE CODES in squeue(1), of a job that is over.
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
ENDED |= {"REVOKED", "TIMEOUT"}
_NO_ANSWER = re.compile("timed out|unable to contact|connection refused", re.IGNORECASE)
# Variables of the place where this process runs, which a job must not inherit; what leads to SLURM stays.
_PLACE_VARIABLES = ("LOCKSTEP_", "SLURM_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_")
_PLACE_VARIABLES += ("CUDA_VISIBLE_DEVICES",)


class Unanswered(RuntimeError):
    """The controller can't be asked now."""


class Refused(RuntimeError):
    """sbatch will not take a job, in its words."""


@dataclass(frozen=True)
class Task:
    """A job in the queue. reason: why it waits. seconds: for which it has run since it was last started. nodes: n[1-2], say."""

    id: str
    state: str
    reason: str = ""
    seconds: float = 0.0
    nodes: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in ENDED


def submit(script: Path, name: str, flags: Sequence[str]) -> Task:
    """Put a job into the queue. Raise Refused with sbatch's words, Unanswered if the controller may not have heard it."""
    return Task(_sbatch("--parsable", f"--job-name={name}", *flags, str(script)).strip().partition(";")[0], "PENDING")


def check_flags(flags: Sequence[str]) -> None:
    """Raise Refused if no node could ever give a job what it asks for, Unanswered."""
    _sbatch("--test-only", *flags, "--wrap=true")


def _sbatch(*arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_PLACE_VARIABLES) or key == "SLURM_CONF"}
    try:
        return answer("sbatch", *arguments, env=environment)
    except Unanswered as error:
        if isinstance(error.__cause__, OSError | subprocess.TimeoutExpired) or _NO_ANSWER.search(str(error)):
            raise
        raise Refused(str(error).removeprefix("sbatch: ").removeprefix("sbatch: error: ")) from error


def tasks(prefix: str) -> dict[str, Task]:
    """Return one's own jobs whose names begin so, by name; those too that have ended some minutes ago. Raise Unanswered."""
    result = {}
    for line in answer("squeue", "--me", "--states=all", "--noheader", "--format=%A|%j|%T|%r|%M|%N").splitlines():
        job, name, state, reason, used, nodes = line.split("|") if line.count("|") == 5 else ("",) * 6
        if name.startswith(prefix):
            result[name] = Task(job, state, "" if reason == "None" else reason, parse_seconds(used), nodes)
    return result


def cancel(ids: Sequence[str], *flags: str) -> None:
    """End jobs, or send them a --signal only. Those that are over are let alone."""
    if ids:
        answer("scancel", "--quiet", *flags, *ids)


def answer(*command: str, patience: float = PATIENCE, env: Mapping[str, str] | None = None) -> str:
    """Return the output of one of SLURM's commands, run in a session of its own, so that Ctrl-C does not end it half-way. Raise
    Unanswered if it fails."""
    options: Any = {"capture_output": True, "text": True, "start_new_session": True}
    try:
        done = subprocess.run(command, timeout=patience, check=False, env=env, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unanswered(f"{command[0]}: {error}") from error
    if done.returncode:
        raise Unanswered(f"{command[0]}: {' '.join(done.stderr.split()) or f'ended with code {done.returncode}'}")
    return done.stdout


def parse_seconds(used: str) -> float:
    """Return the seconds of 1-02:03:04 or 03:04: days, hours, minutes and seconds; 0 for INVALID."""
    if re.fullmatch(r"(\d+-)?\d+(:\d+)*", used) is None:
        return 0.0
    days, _, rest = used.rpartition("-")
    total = 0
    for part in rest.split(":"):
        total = total * 60 + int(part)
    return float(total + 86400 * int(days or 0))
