"""The end of srun in a batch script, for what none of its tasks could say or do any more: they were killed with their node, or
srun could not start them.

    python -m lockstep.slurm.after_srun CODE AT_MOST [overrides]

CODE is what srun has ended with, the overrides are the run's. Where ranks were lost, the job goes back into the queue unless it
was restarted AT_MOST times before; the run then goes on from its last checkpoint.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep import console
from lockstep.atomic_files import read_json
from lockstep.config.overrides import values_by_key
from lockstep.errors import ExitCode
from lockstep.launchers.environment import restarts
from lockstep.runs.directory import absolute
from lockstep.runs.record import LOST_RANK, write_status
from lockstep.runs.resume import locate_run
from lockstep.runs.saved import FILE
from lockstep.slurm.cluster import Slurm, SlurmError, answer

_WARNED = (ExitCode.PREEMPTED, 128 + signal.SIGUSR1)  # before anybody could say so


def main(code: int, at_most: int, overrides: Sequence[str]) -> None:
    directory = _run_directory(overrides)
    status = ({} if directory is None else read_json(directory / "status.json")) or {}
    if not status.items() >= Slurm().job().items():  # of an earlier life of the job
        status = {}
    if not _has_lost_ranks(code, status):
        return
    reason = status.get("reason") or f"srun has ended with code {code} and its ranks without a word"
    if code in _WARNED or restarts() < at_most:
        if directory is not None:
            write_status(directory, "preempted", reason)
        try:
            answer("scontrol", "requeue", os.environ["SLURM_JOB_ID"])
        except SlurmError as error:
            reason = f"{reason}; the job was not requeued: {error}"
        else:
            console.say(f"{reason}: the job is requeued")
            return
    if directory is not None:
        write_status(directory, "failed", reason)
    console.say(f"The run failed: {reason}")


def _run_directory(overrides: Sequence[str]) -> Path | None:
    """Return the directory of the run that a command line names by resume= or hydra.run.dir=; None where there is none yet."""
    values = values_by_key(overrides)
    wanted = values.get("resume", "null")
    directory = absolute(values.get("hydra.run.dir", "")) if wanted == "null" else locate_run(wanted)
    return directory if (directory / FILE).is_file() else None


def _has_lost_ranks(code: int, status: dict[str, Any]) -> bool:
    """Return whether ranks have ended without a word, by the status.json of this start of the job."""
    match status.get("status"):
        case "running":
            return code != ExitCode.FINISHED
        case "failed":
            return LOST_RANK in status
        case None:  # none has come as far as that
            return code in _WARNED or code > 128
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
