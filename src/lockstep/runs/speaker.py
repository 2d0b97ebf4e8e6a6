"""Which of the ranks that srun has started says how the run has ended: they have no parent that would."""

import os
import time
from pathlib import Path

from lockstep.launchers.environment import restarts
from lockstep.launchers.slurm import job_name

RANK_ZERO_WITHIN = 10.0  # seconds, since another rank has ended
_NOTE = ".said-by-rank."


def first_to_speak(directory: Path, rank: int) -> bool:
    """Is it this rank? Rank zero, unless that is stuck or dead; then the one that leaves a note in the run's directory first."""
    deadline = time.monotonic() + (RANK_ZERO_WITHIN if rank else 0)
    note = directory / _note()
    try:
        while not note.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        note.open("x").close()
    except FileExistsError:
        return False
    except OSError:  # there is no directory yet, or the disk is full
        return True
    return True


def forget_speakers(directory: Path) -> None:
    """Those of the run's earlier lives."""
    for path in directory.glob(f"{_NOTE}*"):
        if path.name != _note():
            path.unlink(missing_ok=True)


def _note() -> str:
    return f"{_NOTE}{job_name()}.{os.environ.get('SLURM_STEP_ID', '0')}.{restarts()}"
