"""Start, watch and end the ranks on this machine, from the process that the user started, which does not import torch."""

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from lockstep.console import say
from lockstep.errors import ExitCode
from lockstep.launchers.environment import RESTARTS, rank_environment, reserved_port
from lockstep.launchers.heartbeat import DEBUGGED
from lockstep.launchers.outcome import Outcome, judge, preempted
from lockstep.launchers.processes import SERVER_DIED, Process, importable, kill_group, start
from lockstep.launchers.stop_signals import DEBUGGER_HINT, STOP_SIGNALS, STOPPING

POLL = 0.05  # seconds between two polls of the ranks
GRACE = 6.0  # seconds for the other ranks to exit once one has, and for all ranks after the deadline of a stop request
PATIENCE = 10.0  # seconds to wait for a killed process
FINISHED_GRACE = 600.0  # seconds for the other ranks to exit once one has finished: a logger may be uploading


@dataclass(frozen=True)
class Rank:
    """A rank that was started; it sends (time, outcome) through `reports` before it exits."""

    process: Process
    reports: Any  # a connection that can be read


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    world_size: int,
    log: Path,
    restarts: int = 0,
    stop_deadline: float = float("inf"),
    fresh: bool = False,
) -> Outcome:
    """Call `function(report, *arguments)` in `world_size` ranks, wait until all have ended, and leave no process behind.

    Args:
        function: Raises SystemExit with the rank's exit code, after one call of `report(outcome)`.
        log: The output of rank k is appended to this path with `.rank{k}` before the suffix; rank zero uses this terminal.
        stop_deadline: Seconds in which ranks that are asked to stop exit by themselves; they are killed soon after.
        fresh: Spawn new interpreters, which import torch themselves, instead of forking a server.
    """
    ranks: list[Rank] = []
    (log.parent / DEBUGGED).unlink(missing_ok=True)
    with reserved_port() as port, STOP_SIGNALS.deferring() as received:
        environment = rank_environment(world_size, port) | {RESTARTS: str(restarts)}
        try:
            for number in range(world_size):
                receiver, sender = Pipe(duplex=False)
                with sender:
                    process = start(
                        _run_rank,
                        sender,
                        importable(function),
                        arguments,
                        title=f"lockstep rank {number}/{world_size} {log.parent.name}",
                        environment=environment | {"RANK": str(number), "LOCAL_RANK": str(number)},
                        output=log.with_suffix(f".rank{number}{log.suffix}") if number else None,
                        fresh=fresh,
                    )
                ranks.append(Rank(process, receiver))
            return _watch(ranks, received, log.parent / DEBUGGED, stop_deadline)
        finally:
            for rank in ranks:
                kill_group(rank.process.pid)
            for rank in ranks:
                rank.process.wait(PATIENCE)  # even a killed process waits for a disk that does not answer


def _run_rank(sender: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    def report(outcome: Outcome) -> None:
        with contextlib.suppress(OSError):  # the parent is gone
            sender.send((time.time(), outcome))

    function(report, *arguments)
    report(Outcome(ExitCode.FINISHED))  # needed if the parent's fork server has died


def _watch(ranks: Sequence[Rank], received: list[int], debugged: Path, stop_deadline: float = float("inf")) -> Outcome:
    reports: dict[int, tuple[float, Outcome]] = {}
    ends_by, forwarded, why = float("inf"), 0, ""
    while None in (codes := _poll(ranks, reports)):
        now = time.monotonic()
        if ended := [code for code in _known_codes(codes, reports) if code is not None]:
            ends_by = min(ends_by, now + (GRACE if any(ended) else FINISHED_GRACE))
        if len(received) > forwarded:
            for rank in ranks:  # they save at the next step boundary and exit
                rank.process.send_signal(signal.SIGUSR1 if received[forwarded] == signal.SIGUSR1 else signal.SIGTERM)
            if not forwarded:
                hint = DEBUGGER_HINT if debugged.exists() else ""
                say(f"{STOPPING}{hint}")
                ends_by = min(ends_by, now + stop_deadline + GRACE)
            forwarded += 1
        if received[:forwarded].count(signal.SIGINT) > 1:
            why = "second Ctrl-C"
            break
        if now > ends_by and not debugged.exists():
            why = f"no answer within {round(stop_deadline, 1):g} s from rank {codes.index(None)}"
            break
        time.sleep(POLL)
    codes = _known_codes(_poll(ranks, reports), reports)
    outcome = judge(codes, reports)
    if not received or (outcome.code == ExitCode.FINISHED and ExitCode.FINISHED in codes):
        return outcome
    has_failed = outcome.code not in (ExitCode.FINISHED, ExitCode.PREEMPTED)
    if has_failed and not outcome.is_silent and None not in codes:
        return outcome
    return preempted(received, outcome.unsaved if any(codes) else why)


def _poll(ranks: Sequence[Rank], reports: dict[int, tuple[float, Outcome]]) -> list[int | None]:
    """Return the exit codes, None for ranks that still run; store each rank's first report."""
    codes = [rank.process.poll() for rank in ranks]  # before the reports, so that the last report of an ended rank is read
    for number, rank in enumerate(ranks):
        with contextlib.suppress(EOFError, OSError):
            while rank.reports.poll():
                reports.setdefault(number, rank.reports.recv())
    return codes


def _known_codes(codes: Sequence[int | None], reports: dict[int, tuple[float, Outcome]]) -> list[int | None]:
    """Return the exit codes; the reported codes for ranks that hang in a user's thread or whose fork server has died."""
    known = list(codes)
    for number, (_, outcome) in reports.items():
        if known[number] in (None, SERVER_DIED):
            known[number] = outcome.code
    return known
