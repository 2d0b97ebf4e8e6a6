"""What each process of a side runs:  python ranks.py FOLDER SIZE [--fresh]

The first one starts as many ranks by the same command, `--fresh` if they are not to be forked, and ends with them. The ranks do
the trainings that come to the folder, one after another.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.atomic_files import replace_text
from lockstep.extras.parity.sides import Training
from lockstep.launchers.environment import this_rank
from lockstep.launchers.heartbeat import HEARTBEAT
from lockstep.launchers.outcome import Outcome, classify_error, original_error
from lockstep.launchers.rank import attach_to_parent, end_workers, report_to_parent
from lockstep.launchers.supervisor import supervise

FRESH = "--fresh"
_POLL = 0.005  # seconds between two looks for the next training


def main() -> None:
    attach_to_parent()
    folder, rank = Path(sys.argv[1]), this_rank()
    if rank is None:
        command, size, fresh = [sys.executable, *sys.argv], int(sys.argv[2]), FRESH in sys.argv
        outcome = supervise(command, size, folder / "train.log", fresh=fresh, quiet=True)
        write_plain(folder / "outcome.json", asdict(outcome))
    else:
        _do_trainings(folder, rank.global_rank)


def _do_trainings(folder: Path, rank: int) -> None:
    """Trains until the process is ended; a training that fails ends it."""

    def give_up(reason: str) -> None:
        _end_with(Outcome(code=1, reason=f"process {rank} has made {reason.partition(';')[0]}", rank=rank))

    try:
        for number in range(sys.maxsize):
            task = _wait_for(folder / f"{number}.json")
            sys.path[:] = task.pop("path")
            from lockstep.extras.parity.trainings import train

            patience = task.pop("patience")
            HEARTBEAT.start(3 * patience, folder / f"stacks.rank{rank}.log", give_up)
            findings = train(Training(**task), patience)
            HEARTBEAT.stop()
            if rank == 0:
                write_plain(folder / f"{number}.findings.json", asdict(findings))
    except BaseException as error:
        _end_with(classify_error(original_error(error), rank, has_stepped=isinstance(error, RuntimeError)))  # torch's, in a step


def _end_with(outcome: Outcome) -> None:
    report_to_parent(outcome)
    end_workers()
    os._exit(outcome.code)


def _wait_for(path: Path) -> dict[str, Any]:
    while not path.exists():
        time.sleep(_POLL)
    return json.loads(path.read_text())


def write_plain(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON in one piece; sets become lists."""
    replace_text(path, json.dumps(content, default=sorted))


if __name__ == "__main__":
    main()
