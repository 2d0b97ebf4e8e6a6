"""How a job stands or has ended, in the manifest's words."""

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from lockstep.errors import ExitCode

STATES = FINISHED, FAILED, INTERRUPTED, RUNNING, WAITING = "finished", "failed", "interrupted", "running", "waiting"

UNKNOWN = "unknown"  # of a job that a cluster has, which does not answer: for who looks, in no manifest


def exit_code_of(states: Container[str]) -> ExitCode:
    """What a sweep ends with whose jobs stand so."""
    if INTERRUPTED in states or RUNNING in states or UNKNOWN in states:
        return ExitCode.PREEMPTED
    return ExitCode.FAILED if FAILED in states or WAITING in states else ExitCode.FINISHED


class Verdict(NamedTuple):
    """On a job that is not under way."""

    status: str
    reason: str | None = None
    metric: float | None = None


@dataclass(frozen=True)
class Standing:
    """Of one under way. lost: why its last start came to nothing, said once, where it is to be started again."""

    status: str = RUNNING
    reason: str | None = None
    lost: str | None = None


@dataclass(frozen=True)
class End:
    """What the one who ran a job knows when it is over.

    code: negative for a signal; None where nobody knows it.
    verdict: where he knows more than the code says.
    is_cancelled: a person wanted it so.
    """

    code: int | None
    verdict: Verdict | None = None
    is_cancelled: bool = False
