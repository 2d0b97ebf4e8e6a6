"""How a job has ended, by what the one who ran it knows and what it has left."""

import signal
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import ExitCode
from lockstep.sweeps.job_directory import FAILED, INTERRUPTED, judge_record, record_of, status_of

OUTPUT = "output.log"  # what a job's processes have said
LOG_TAIL = 20  # lines of a failed job's log that are recorded


@dataclass(frozen=True)
class End:
    """code: negative for a signal; None where nobody knows it.

    verdict: status and reason, where the one who ran it knows more than the code says.
    is_cancelled: a person wanted it so.
    """

    code: int | None
    verdict: tuple[str, str | None] | None = None
    is_cancelled: bool = False


def judge(directory: Path, end: End, ended_for: tuple[str, str] | None = None) -> tuple[str, str | None, float | None]:
    """Status, reason and metric of a job that has ended. Finished means code 0 and a record with finite metrics. `ended_for`:
    status and reason of one that we have ended."""
    code = end.code
    record = record_of(directory) if code == ExitCode.FINISHED else None
    if record is not None:
        return judge_record(directory, record)
    if (said := ended_for or end.verdict) is not None:
        return said[0], said[1], None
    if code == ExitCode.FINISHED:
        return FAILED, "ended with code 0 and no record", None
    if code is not None and code < 0:
        return FAILED, f"killed by {signal.Signals(-code).name}", None
    _, reason = status_of(directory)
    if code == ExitCode.PREEMPTED:
        return INTERRUPTED, reason, None
    reason = reason or ": ".join([f"ended with code {code}", *log_tail(directory)[-1:]])
    return FAILED, " ".join(reason.split()), None


def log_tail(directory: Path) -> list[str]:
    path = directory / OUTPUT
    return path.read_text(errors="replace").splitlines()[-LOG_TAIL:] if path.is_file() else []
