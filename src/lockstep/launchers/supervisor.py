"""The parent of a run's ranks: starts them, watches them, ends them together. Imports no torch."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from lockstep.config.plan import cores
from lockstep.errors import ExitCode
from lockstep.launchers.cluster import queue
from lockstep.launchers.environment import ERROR_DIR, PARENT_PIPE, PIDS, RESTARTS, without_rank_variables
from lockstep.launchers.outcome import Outcome, killed_by
from lockstep.launchers.processes import Process, start_process
from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted, leading

POLL = 0.05  # seconds between two looks at the ranks
SHUTDOWN_GRACE = 2.0  # seconds the others get to end by themselves once a rank has failed
LEAVING_TOGETHER = 8.0  # seconds they get once a rank has left because the run was preempted: all have saved by then
LATE = 4.0  # seconds that ranks which are asked to stop may be late: at the deadline they write their stacks
FINISHED_TOGETHER = 600.0  # seconds they get once a rank has finished: a logger may have something to upload
KILL_GRACE = 1.0  # seconds between SIGTERM and SIGKILL
PATIENCE = 10.0  # seconds in which a process that was killed is gone


def supervise(
    command: list[str],
    world_size: int,
    log: Path,
    restarts: int = 0,
    stop_deadline: float = float("inf"),
    *,
    fresh: bool = True,
    quiet: bool = False,
) -> Outcome:
    """Runs `command` as `world_size` ranks on this machine until all have ended; leaves no process behind.
    `restarts` is how often that has been tried before. Ranks that are asked to stop end themselves within `stop_deadline`
    seconds; those that can't, because they are suspended, say, are ended soon after. Ranks that are not `fresh` are forked by a
    server that has imported torch.

    Rank zero shares this terminal, unless it is to be `quiet`; the output of rank k is appended to `log` with `.rank{k}` before
    the suffix.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-") as errors, reserved_port() as port, contextlib.ExitStack() as lifelines:
        environment = _environment(world_size, port) | {ERROR_DIR: errors, RESTARTS: str(restarts)}
        ranks: list[Process] = []
        with STOP_SIGNALS.deferring() as received:
            try:
                for rank in range(world_size):
                    if received:  # they have not met: there is nothing to save
                        return _preempted(received)
                    reader, _ = lifelines.enter_context(pipe())
                    ranks.append(_start(command, rank, environment, reader, log, fresh, quiet))  # ended should one fail to start
                (Path(errors) / PIDS).write_text(" ".join(str(rank.pid) for rank in ranks))
                return _watch(ranks, received, Path(errors), stop_deadline)
            finally:
                _end(ranks)


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose write end this process alone holds: when it dies, however it dies, the other end reads an end of file."""
    reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def reserved_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Reserves a free port of the address `host`, or of all addresses for "".

    It is bound but not listened on, so that torch's TCPStore can still listen on it with SO_REUSEADDR, while the kernel gives it
    to nobody else who asks for any free port.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield holder.getsockname()[1]


def _environment(world_size: int, port: int) -> dict[str, str]:
    environment = without_rank_variables(os.environ)
    environment |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "NODE_RANK": "0"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(cores()) // world_size)))
    use_loopback(environment)
    return environment


def use_loopback(environment: MutableMapping[str, str]) -> None:
    """Lets gloo use the loopback interface unless the user names another: it looks up the host's own name, and hangs where that
    does not resolve (pytorch issue 74316)."""
    if loopback := next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None):
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback)


def _start(
    command: list[str], rank: int, environment: dict[str, str], reader: int, log: Path, fresh: bool, quiet: bool
) -> Process:
    environment = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    with log.with_suffix(f".rank{rank}{log.suffix}").open("ab") if rank or quiet else contextlib.nullcontext() as output:
        return start_process(command, environment, (PARENT_PIPE, reader), output, output, fresh=fresh)


def _watch(ranks: list[Process], received: list[int], errors: Path, stop_deadline: float = float("inf")) -> Outcome:
    ends_by, forwarded, why = float("inf"), 0, ""
    while (codes := [rank.poll() for rank in ranks]).count(None):
        now = time.monotonic()
        ends_by = min(ends_by, now + _time_to_leave(codes))
        if len(received) > forwarded:
            _pass_on(received[forwarded], ranks, first=not forwarded)
            if not forwarded:
                stop_deadline = queue().within_job(stop_deadline)
                ends_by = min(ends_by, now + stop_deadline + LATE)
            forwarded += 1
        if received[:forwarded].count(signal.SIGINT) > 1:
            why = "asked for twice"
            break
        if now > ends_by:
            why = f"no answer within {round(stop_deadline, 1):g} s from rank {codes.index(None)}"
            break
        time.sleep(POLL)
    codes = [rank.poll() for rank in ranks]
    outcome = _outcome(codes, errors)
    if not received or (outcome.code == ExitCode.FINISHED and ExitCode.FINISHED in codes):
        return outcome
    if outcome.code == ExitCode.PREEMPTED:
        return _preempted(received, outcome.unsaved)
    if None in codes and not any(codes):
        return _preempted(received, why)
    return _preempted(received) if outcome.is_silent or None in codes else outcome


def _time_to_leave(codes: list[int | None]) -> float:
    """Returns the seconds that the other ranks get once some have ended."""
    ended = [code for code in codes if code is not None]
    if not ended:
        return float("inf")
    if not any(ended):
        return FINISHED_TOGETHER
    return LEAVING_TOGETHER if ExitCode.PREEMPTED in ended else SHUTDOWN_GRACE


def _preempted(received: list[int], unsaved: str | None = None) -> Outcome:
    error = Preempted(leading(received), unsaved)
    return Outcome(code=ExitCode.PREEMPTED, reason=str(error), signal=error.number, unsaved=unsaved)


def _pass_on(number: int, ranks: list[Process], first: bool) -> None:
    """Passes a request to stop on to the ranks: they save at the next step boundary and exit."""
    if first:
        print("Stopping at the next step; Ctrl-C twice kills the ranks at once.", file=sys.stderr, flush=True)
    _signal_all(ranks, signal.SIGUSR1 if number == signal.SIGUSR1 else signal.SIGTERM)


def _outcome(codes: list[int | None], errors: Path) -> Outcome:
    """Returns the outcome of the rank that failed first, or exited first because it was asked to. A rank that ended without a
    report (killed, or os._exit) precedes those that raised: they raise when a peer is gone, or end by SIGABRT. One that ended by
    SIGABRT is the cause where the others say no more than that they have lost it."""
    if not any(codes):
        return Outcome(code=ExitCode.FINISHED)
    reports = {report["rank"]: report for report in (json.loads(file.read_text()) for file in errors.glob("*.json"))}
    silent = {rank: code for rank, code in enumerate(codes) if code and rank not in reports}
    is_explained = any(not report.get("has_lost_rank") for report in reports.values())
    suspects = {rank: code for rank, code in silent.items() if code != -signal.SIGABRT} or ({} if is_explained else silent)
    if suspects:
        rank, code = next(iter(suspects.items()))
        how = f"was {killed_by(code)}" if code < 0 else f"ended with code {code} and no word"
        return Outcome(code=ExitCode.FAILED, reason=f"rank {rank} {how}", rank=rank, is_silent=True)
    first = min(reports.values(), key=lambda report: report["time"])
    return Outcome(**{name: value for name, value in first.items() if name != "time"})


def _signal_all(ranks: list[Process], number: int) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(number)


def _end(ranks: list[Process]) -> None:
    """Ends the ranks that still run, then whatever their process groups still hold."""
    _signal_all(ranks, signal.SIGTERM)
    deadline = time.monotonic() + KILL_GRACE
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(POLL)
    for rank in ranks:
        kill_group(rank.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a disk that does not answer keeps even a killed process
            rank.wait(timeout=PATIENCE)


def kill_group(pid: int) -> None:
    """Kills a process and what it has started in its group, its data workers; nothing if they are gone. Its children's groups
    too, where there is a /proc to read them in: one that is suspended, or stuck with Python's lock, would not follow."""
    groups = [pid]
    with contextlib.suppress(OSError):
        groups += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
