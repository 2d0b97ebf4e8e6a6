"""The end of srun in a batch script, for what none of its tasks could say or do any more: they were killed with their node, or
srun could not start them.

    python -m lockstep.extras.slurm.after_srun CODE AT_MOST [overrides]

CODE is what srun has ended with, the overrides are the run's. Where ranks were lost, the job goes back into the queue, up to
AT_MOST times for a run, which then goes on from its last checkpoint; else status.json says how the run has ended.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep import console
from lockstep.atomic_files import read_json
from lockstep.config.overrides import values_by_key
from lockstep.errors import ExitCode
from lockstep.extras.slurm.cluster import Slurm, job_name, requeue, state_of_job
from lockstep.extras.slurm.commands import Unanswered
from lockstep.launchers.environment import restarts
from lockstep.runs.directory import absolute
from lockstep.runs.record import LOST_RANK, REQUEUES, write_status
from lockstep.runs.resume import locate_run
from lockstep.runs.saved import FILE

_WARNED = (ExitCode.PREEMPTED, 128 + signal.SIGUSR1)  # before anybody could say so


def main(code: int, at_most: int, overrides: Sequence[str]) -> None:
    directory = _named_directory(overrides)
    said = ({} if directory is None else read_json(directory / "status.json")) or {}
    is_of_this_life = said.items() >= Slurm().job().items()
    if (name := job_name()) is None or not _has_lost_ranks(code, said if is_of_this_life else {}):
        return
    is_warned = code in _WARNED
    reason = said["reason"] if is_of_this_life and said.get("reason") else _words(code)
    count = said.get(REQUEUES, 0) if said else restarts()
    if is_warned or count < at_most:
        more = {} if is_warned else {REQUEUES: count + 1}
        words = reason if is_warned else f"{reason}; restart {count + 1} of {at_most}"
        _write(directory, "preempted", words, **more)
        refusal = requeue(name)
        if refusal is None or not _is_running():  # SLURM has put it back itself, or ends it
            console.say(f"{words}: SLURM job {name} is requeued" if refusal is None else words)
            return
        reason = f"{reason}; SLURM job {name} was not requeued: {refusal}"
    else:
        reason = f"{reason}, after {at_most} restart(s)"
    _write(directory, "failed", reason)
    console.say(f"The run failed: {reason}")


def _named_directory(overrides: Sequence[str]) -> Path | None:
    """Returns the directory that a command line names by resume= or hydra.run.dir=; None where it names none."""
    values = values_by_key(overrides)
    wanted = values.get("resume", "null")
    if wanted == "last":  # which ranks refuse
        return None
    if wanted != "null":
        return locate_run(wanted)
    return absolute(values["hydra.run.dir"]) if "hydra.run.dir" in values else None


def _has_lost_ranks(code: int, said: dict[str, Any]) -> bool:
    """Return whether ranks have ended without a word, by the status.json of this start of the job."""
    match said.get("status"):
        case "running":
            return code != ExitCode.FINISHED
        case "failed":
            return LOST_RANK in said
        case None:  # none has come as far as that
            return code in _WARNED or code > 128
    return False


def _words(code: int) -> str:
    if code in _WARNED:
        return "preempted by SIGUSR1"
    try:
        return f"a rank was killed by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"srun has ended with code {code} and its ranks without a word"


def _write(directory: Path | None, status: Any, reason: str, **more: Any) -> None:
    """Writes where there is a run: a directory without one can still become its."""
    if directory is not None and (directory / FILE).is_file():
        write_status(directory, status, reason, **more)


def _is_running() -> bool:
    try:
        return state_of_job()[0] == "RUNNING"
    except Unanswered:
        return True


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
