"""Which rank a run failed by, and what its ranks find in their environment: the parts that need no processes."""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from environments import PARENT
from waiting import once, wait_for

from lockstep.launchers import environment, launch
from lockstep.launchers.environment import (
    Launcher,
    Rank,
    RankZeroFilter,
    is_rank_zero,
    rank_environment,
    reserved_port,
    this_rank,
)
from lockstep.launchers.launch import _watch
from lockstep.launchers.outcome import Outcome, judge
from lockstep.launchers.processes import is_alive

Reports = dict[int, tuple[float, Outcome]]


def said(rank: int, time: float = 1.0, code: int = 1, reason: str = "boom", **more: Any) -> Reports:
    """Return the report of a rank that has ended."""
    return {rank: (time, Outcome(code=code, reason=reason, rank=rank, traceback=f"Traceback {rank}", **more))}


def ended(*codes: int | None, reports: Reports | None = None) -> list[Any]:
    """Ranks that have ended with these codes, None for one that runs on; their connections hold their reports."""
    ranks = []
    for number, code in enumerate(codes):
        receiver, sender = Pipe(duplex=False)
        if number in (reports or {}):
            sender.send((reports or {})[number])
        sender.close()
        process = SimpleNamespace(poll=lambda code=code: code, send_signal=lambda _: None)
        ranks.append(SimpleNamespace(process=process, reports=receiver))
    return ranks


LOST = said(0, reason="connection closed by peer")
KILLED = [(number, f"rank 1 was killed by {number.name}") for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)]


@pytest.mark.parametrize(
    ("codes", "reports", "rank", "reason"),
    [
        ([1, 1, 1], said(0, time=5.0, reason="lost") | said(2, time=3.0, reason="1 / 0") | said(1, time=4.0), 2, "1 / 0"),
        *(([1, -number, 1], LOST | said(2, reason="connection closed by peer"), 1, line) for number, line in KILLED),
        ([1, 7], LOST, 1, "rank 1 ended with code 7 and no word"),
        ([None, -9, -11], {}, 1, "rank 1 was killed by SIGKILL"),
        ([-signal.SIGABRT, 1], said(1, reason="ValueError: bad"), 1, "ValueError: bad"),  # it aborts because its peer raised
        ([-signal.SIGABRT, -signal.SIGKILL], {}, 1, "rank 1 was killed by SIGKILL"),
        ([None, -signal.SIGABRT], {}, 1, "rank 1 was killed by SIGABRT"),
        ([1, -signal.SIGABRT], said(0, has_lost_rank=True), 1, "rank 1 was killed by SIGABRT"),  # the other knows no more
        ([0, 3, 4], {}, 1, "rank 1 ended with code 3 and no word"),
        ([None, 1], said(1), 1, "boom"),  # the other gets a moment, and is ended after the verdict
        ([-signal.SIGABRT, 0], said(0, code=0), 0, "rank 0 was killed by SIGABRT"),
    ],
)
def test_the_rank_that_failed_first_is_named(codes: list[int | None], reports: Reports, rank: int, reason: str) -> None:
    outcome = judge(codes, reports)
    assert (outcome.code, outcome.rank, outcome.reason) == (1, rank, reason)


def test_a_report_s_code_is_the_outcome_s_and_a_good_end_has_none() -> None:
    assert judge([0, 0], said(1)) == Outcome(code=0)
    assert judge([2, -signal.SIGABRT], said(0, code=2, reason="datamodule.data_dir=x: no such folder")).code == 2
    asked = said(1, time=0.5, code=75, reason="preempted by SIGUSR1", signal=signal.SIGUSR1)
    outcome = judge([1, 75], LOST | asked)
    assert (outcome.code, outcome.reason, outcome.signal) == (75, "preempted by SIGUSR1", signal.SIGUSR1)


def test_a_rank_whose_fork_server_has_died_ends_with_what_it_has_said() -> None:
    assert _watch(ended(255, 255, reports=said(0, code=0) | said(1, code=0)), [], Path("none")) == Outcome(code=0)
    outcome = _watch(ended(255, 255, reports=said(0, code=0)), [], Path("none"))
    assert outcome.reason == "rank 1 ended with code 255 and no word"


def test_a_rank_that_hangs_when_it_has_said_why_it_ends_is_waited_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.1)
    outcome = _watch(ended(None, reports=said(0, reason="planted")), [], Path("none"))
    assert (outcome.code, outcome.rank, outcome.reason) == (1, 0, "planted")


@pytest.mark.parametrize(("cores", "world_size", "threads"), [(8, 2, "4"), (8, 3, "2"), (2, 4, "1")])
def test_ranks_share_the_cores(cores: int, world_size: int, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cores", lambda: set(range(cores)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert rank_environment(world_size, 1)["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(
    ("report", "code", "reason"),
    [
        ({"code": 1, "reason": "rank 0: the disk is full"}, 1, "rank 0: the disk is full"),
        ({"code": 75, "reason": "preempted by SIGUSR1"}, 75, "preempted by SIGTERM"),
        (None, 75, "preempted by SIGTERM"),  # killed before it could say anything
    ],
)
def test_a_failure_after_a_request_to_stop_is_no_preemption(report: dict[str, Any] | None, code: int, reason: str) -> None:
    reports = {} if report is None else said(0, **report)
    ranks = ended(-signal.SIGTERM if report is None else report["code"], 0, reports=reports)
    outcome = _watch(ranks, [signal.SIGTERM], Path("none"))
    assert (outcome.code, outcome.reason) == (code, reason)


# Requests that nobody answers


def stuck(_: Any) -> None:
    """Ignores requests; rank zero is suspended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Path("pids").open("a") as file:
        print(os.getpid(), file=file)
    if os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


@pytest.mark.parametrize(
    ("asked", "deadline", "reason"),
    [
        ([signal.SIGHUP], 0.2, "preempted by SIGHUP, without a new checkpoint: no answer within 0.2 s from rank 0"),
        ([signal.SIGINT] * 2, 60, "preempted by SIGINT, without a new checkpoint: second Ctrl-C"),
    ],
)
def test_ranks_that_are_suspended_or_deaf_are_ended(
    asked: list[int], deadline: float, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "GRACE", 0.2)

    def ask() -> None:
        for number in asked:
            os.kill(os.getpid(), number)
            time.sleep(0.3)  # two that wait for a handler are one

    once(lambda: Path("pids").is_file() and len(Path("pids").read_text().split()) == 2, ask)
    outcome = launch.launch(stuck, world_size=2, log=tmp_path / "train.log", stop_deadline=deadline)
    assert (outcome.code, outcome.reason, outcome.signal) == (75, reason, asked[0])
    wait_for(lambda: not any(map(is_alive, map(int, Path("pids").read_text().split()))), seconds=30)


def test_what_a_stuck_rank_says_of_itself_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has left within its own deadline; the other one is suspended, and ended by the parent."""
    monkeypatch.setattr(launch, "GRACE", 0.1)
    reports = said(0, code=75, signal=signal.SIGTERM, unsaved="no answer within 5 s")
    outcome = _watch(ended(75, None, reports=reports), [signal.SIGINT], Path("none"))
    assert outcome.reason == "preempted by SIGINT, without a new checkpoint: no answer within 5 s"


def test_a_rank_that_has_finished_is_no_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    """They finish together: the other one hangs in what Python does when it ends."""
    monkeypatch.setattr(launch, "FINISHED_GRACE", 0.1)
    for received in ([], [signal.SIGTERM]):
        assert _watch(ended(0, None), received, Path("none")) == Outcome(code=0)


def test_the_port_is_on_the_loopback_and_can_be_listened_on() -> None:
    with reserved_port() as port, socket.create_server(("127.0.0.1", port)), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


RANK = Rank(Launcher(), global_rank=1, local_rank=1, world_size=4, num_nodes=1)


@pytest.mark.parametrize(
    ("env", "rank", "speaks"),
    [
        ({}, None, True),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, None, True),  # left behind by another program
        (PARENT, RANK, False),
    ],
)
def test_a_rank_is_what_the_parent_has_started(
    env: dict[str, str], rank: Rank | None, speaks: bool, started: Callable[[dict[str, str]], None]
) -> None:
    started(env)
    assert this_rank() == rank
    assert is_rank_zero() is RankZeroFilter().filter(logging.makeLogRecord({})) is speaks
