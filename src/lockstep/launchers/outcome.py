"""Outcomes of ranks and runs, and their exit codes."""

import re
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.errors import ConfigError, ExitCode, NamedFailure
from lockstep.launchers.heartbeat import NoProgress
from lockstep.launchers.stop_signals import Preempted, leading

# messages of gloo, NCCL, torch's store
_LOST_PEER = re.compile("closed by peer|reset by peer|remote process exit|Broken pipe|Connection timed out")


@dataclass(frozen=True)
class Outcome:
    """The end of a run's ranks.

    code: an ExitCode.
    reason, rank, traceback: the report of the rank that failed first.
    signal: the signal that has preempted the run, or 0.
    unsaved: why no checkpoint was saved when the run was preempted.
    has_lost_rank: True if another rank has died for a reason that this one does not know.
    """

    code: int
    reason: str | None = None
    rank: int | None = None
    traceback: str | None = None
    signal: int = 0
    unsaved: str | None = None
    has_lost_rank: bool = False
    is_final: bool = field(default=False, compare=False)  # a restart would fail in the same way
    is_silent: bool = field(default=False, compare=False)  # the rank has reported no reason


Report = Callable[[Outcome], None]  # called by a rank to report why it ends


def classify_error(error: BaseException, rank: int, has_stepped: bool = False) -> Outcome:
    """Return the outcome of an exception. A ConfigError means that the run could not start, unless the optimizer has made a step:
    then it is a failure, so that training is never thrown away."""
    if isinstance(error, Preempted):
        return preempted([error.number], error.unsaved)
    if isinstance(error, ConfigError):
        return Outcome(ExitCode.FAILED if has_stepped else ExitCode.REFUSED, str(error), rank, is_final=True)
    if type(error).__name__ == "MisconfigurationException" and not has_stepped:  # Lightning's
        return Outcome(ExitCode.REFUSED, f"trainer: {' '.join(str(error).split())}", rank, is_final=True)
    if isinstance(error, NamedFailure | NoProgress):
        return Outcome(ExitCode.FAILED, f"rank {rank}: {error}", rank, is_final=isinstance(error, NamedFailure))
    if isinstance(error, RuntimeError) and _LOST_PEER.search(str(error)):
        reason = f"rank {rank} has lost its connection to another rank; the logs of the others may say why"
        return Outcome(ExitCode.FAILED, reason, rank, has_lost_rank=True)
    said = f"{type(error).__name__}: {error}"
    if "\nOriginal Traceback" in said:  # from a data worker; its error is at the end
        said = said.rstrip().splitlines()[-1]
    return Outcome(ExitCode.FAILED, f"rank {rank}: {said}", rank, "".join(traceback.format_exception(error)))


def original_error(error: BaseException) -> BaseException:
    """Return the error because of which Lightning was ending a stage when it raised this one; for example, it asks a loader that
    could not start its workers for its length. A ConfigError that is the cause comes first."""
    if isinstance(error.__cause__, ConfigError):
        return error.__cause__
    first = error.__context__
    if first is None or first.__traceback__ is None:
        return error
    caught_in = first.__traceback__.tb_frame.f_globals.get("__name__")
    return first if caught_in == "lightning.pytorch.trainer.call" else error


def killed_by(code: int) -> str:
    """Describe the end of a process with a negative exit code."""
    return f"killed by {signal.Signals(-code).name}"


def preempted(received: Sequence[int], unsaved: str | None = None) -> Outcome:
    """Return the outcome of ranks that were asked to stop."""
    error = Preempted(leading(received), unsaved)
    return Outcome(ExitCode.PREEMPTED, str(error), signal=error.number, unsaved=unsaved)


def judge(codes: Sequence[int | None], reports: Mapping[int, tuple[float, Outcome]]) -> Outcome:
    """Return the outcome of the rank that failed first, or that exited first on request.

    A rank that ended without a report (killed, or by os._exit) precedes ranks that raised, because ranks raise or end by SIGABRT
    when a peer is lost. A rank that ended by SIGABRT is the cause if the others report only that they have lost a peer.
    """
    if not any(codes):
        return Outcome(ExitCode.FINISHED)
    failures = {number: report for number, report in reports.items() if report[1].code}
    silent = {number: code for number, code in enumerate(codes) if code and number not in failures}
    suspects = {number: code for number, code in silent.items() if code != -signal.SIGABRT}
    if all(outcome.has_lost_rank for _, outcome in failures.values()):
        suspects = suspects or silent
    for number, code in suspects.items():
        how = f"rank {number} was {killed_by(code)}" if code < 0 else f"rank {number} ended with code {code} and no word"
        return Outcome(ExitCode.FAILED, how, number, is_silent=True)
    return min(failures.values(), key=lambda report: report[0])[1]
