"""The states of a sweep's jobs, as job.json says them, and how an attempt at a job ends."""

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from lockstep.errors import ExitCode

STATES = FINISHED, FAILED, INTERRUPTED, RUNNING, WAITING = "finished", "failed", "interrupted", "running", "waiting"

UNKNOWN = "unknown"  # a queue has the job and does not answer: for who looks, in no file


def sweep_exit_code(states: Container[str]) -> ExitCode:
    """What a sweep ends with whose jobs have these states."""
    if INTERRUPTED in states or RUNNING in states or UNKNOWN in states:
        return ExitCode.PREEMPTED
    return ExitCode.FAILED if FAILED in states or WAITING in states else ExitCode.FINISHED


class JobState(NamedTuple):
    """A job's status, why it has it, and the metric of one that has finished."""

    status: str = RUNNING
    reason: str | None = None
    metric: float | None = None


@dataclass(frozen=True)
class Exit:
    """How an attempt has ended, as far as its executor knows.

    code: negative for a signal; None where nobody knows it.
    state: the job's, where the executor knows more than the code says.
    is_cancelled: a person wanted it so.
    is_lost: what it ran on has died, a node say: it is tried again, whether or not it has advanced.
    """

    code: int | None
    state: JobState | None = None
    is_cancelled: bool = False
    is_lost: bool = False
