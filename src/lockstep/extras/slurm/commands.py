"""SLURM's commands: sbatch, squeue, sacct, sinfo, scontrol and scancel.

Not by submitit: it keeps the numbers of jobs in the memory of the process that has submitted them, unpickles a function where a
sweep's job is a command line, and asks sacct alone, which says nothing on a cluster without accounting. What is needed of it is
what is below.
"""

import fcntl
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds that one of them may take
# The states, of JOB STATE CODES in squeue(1), of a job that is over.
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
ENDED |= {"REVOKED", "TIMEOUT"}
LARGEST = 1001  # tasks of an array: what MaxArraySize is unless slurm.conf says otherwise
_NO_ANSWER = "timed out|unable to contact|connection refused"
_SUBMITTING = "submitting"
_FIELDS = "%F|%K|%j|%T|%r|%M|%N"
# Variables of the place where this process runs, which a job must not inherit; what leads to SLURM stays.
_PLACE_VARIABLES = ("LOCKSTEP_", "SLURM_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_")
_PLACE_VARIABLES += ("CUDA_VISIBLE_DEVICES",)


class Unanswered(RuntimeError):
    """The controller can't be asked now."""


class Refused(RuntimeError):
    """sbatch will not take a job, in its words."""


@dataclass(frozen=True)
class Task:
    """One task of a job array, or a job of its own.

    id: as scancel takes it, 12_3 say.
    reason: why it waits.
    seconds: for which it has run since it was last started.
    nodes: a list as SLURM writes it, n[1-2].
    """

    id: str
    state: str
    reason: str = ""
    seconds: float = 0.0
    nodes: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in ENDED


def submit(script: Path, name: str, count: int, flags: Sequence[str], at_once: int | None = None) -> str:
    """Puts an array of `count` tasks into the queue, `at_once` of them at the same time, unless there is one of that name;
    returns its number.

    A file beside the script is locked until sbatch has ended, even if this process is killed first: see `wait_for_sbatch`.
    Raises Refused with sbatch's words, Unanswered where it is not known whether it is.
    """
    if (known := _find_number(name)) is not None:
        return known
    array = f"--array=0-{count - 1}" + (f"%{at_once}" if at_once else "")
    with (script.parent / _SUBMITTING).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        options: dict[str, Any] = {"env": _environment(), "pass_fds": (file.fileno(),)}
        done = run_slurm("sbatch", "--parsable", f"--job-name={name}", array, *flags, str(script), **options)
    if done.returncode == 0:
        return done.stdout.strip().partition(";")[0]
    words = " ".join(done.stderr.split())
    if not re.search(_NO_ANSWER, words, re.IGNORECASE):  # a job that is refused may be in the queue all the same, as FAILED
        raise Refused(words)
    if (known := _find_number(name)) is not None:  # it was heard after all
        return known
    raise Unanswered(words)


def check_flags(flags: Sequence[str]) -> None:
    """Raises Refused with sbatch's words where no node could ever give a job what it asks for, Unanswered."""
    done = run_slurm("sbatch", "--test-only", *flags, "--wrap=true", env=_environment())
    words = " ".join(done.stderr.split()).removeprefix("sbatch: error: ")
    if done.returncode and re.search(_NO_ANSWER, words, re.IGNORECASE):
        raise Unanswered(words)
    if done.returncode:
        raise Refused(words)


def largest_array() -> int:
    """How many tasks an array of this cluster may have; see MaxArraySize and max_array_tasks in slurm.conf(5)."""
    config = answer("scontrol", "show", "config")
    limits = re.findall(r"^MaxArraySize\s*=\s*(\d+)|max_array_tasks=(\d+)", config, re.MULTILINE)
    return max(1, min((int(size or tasks) for size, tasks in limits), default=LARGEST))


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(_PLACE_VARIABLES) or key == "SLURM_CONF"}


def _find_number(name: str) -> str | None:
    return next((task.id.partition("_")[0] for place, task in tasks(name).items() if place.startswith(f"{name}_")), None)


def wait_for_sbatch(folder: Path) -> None:
    """Waits for the sbatch of a sweep that was killed while it submitted: then squeue shows what it has put into the queue."""
    if folder.is_dir():
        with (folder / _SUBMITTING).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def tasks(prefix: str) -> dict[str, Task]:
    """Those of one's own whose job's name begins so, by NAME_INDEX; for some minutes those too that are over. Raises
    Unanswered."""
    result = {}
    for line in answer("squeue", "--me", "--array", "--states=all", "--noheader", f"--format={_FIELDS}").splitlines():
        job, index, name, state, reason, used, nodes = line.split("|") if line.count("|") == 6 else ("",) * 7
        if name.startswith(prefix):
            task = Task(f"{job}_{index}", state, "" if reason == "None" else reason, parse_seconds(used), nodes)
            result[f"{name}_{index}"] = task
    return result


def accounted(name: str) -> dict[str, Task]:
    """The same of those that have left the queue, on a cluster that keeps accounts; else nothing."""
    query = ("--allocations", "--noheader", "--parsable2", "--starttime=now-60days", "--format=JobID,State,NodeList")
    try:
        lines = answer("sacct", f"--name={name}", *query).splitlines()
    except Unanswered:
        return {}
    rows = [line.split("|") for line in lines if line.count("|") == 2]
    return {f"{name}_{job.rpartition('_')[2]}": Task(job, state.split(" ")[0], nodes=nodes) for job, state, nodes in rows}


def cancel(ids: Sequence[str], signal: str | None = None) -> None:
    """Ends them, or sends them a signal only. Those that are over are let alone."""
    if ids:
        options = [] if signal is None else [f"--signal={signal}"]
        answer("scancel", "--quiet", *options, *ids)


def node_summary(nodes: str) -> str:
    """Returns what SLURM says of the nodes that are not well: n2 is down* (Not responding)."""
    try:
        lines = answer("sinfo", "--Node", "--noheader", f"--nodes={nodes}", "--format=%N|%T|%E").splitlines() if nodes else []
    except Unanswered:
        return ""
    rows = dict.fromkeys(tuple(line.split("|", 2)) for line in lines if line.count("|") >= 2)
    return ", ".join(f"{node} is {state} ({why})" for node, state, why in rows if re.match("down|fail|drain|unknown", state))


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
