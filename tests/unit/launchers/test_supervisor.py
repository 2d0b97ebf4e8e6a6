"""Which rank a run failed by, and what its ranks find in their environment: the parts that need no processes."""

import json
import os
import signal
import socket
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import MARK, processes_marked
from waiting import once, wait_for

from lockstep.launchers import supervisor
from lockstep.launchers.environment import PARENT_PIPE, rank_in
from lockstep.launchers.outcome import Outcome
from lockstep.launchers.supervisor import _environment, _outcome, _watch, reserved_port, supervise


def report(folder: Path, rank: int, time: float, code: int = 1, reason: str = "boom", **more: Any) -> None:
    content: dict[str, Any] = {"time": time, "rank": rank, "code": code, "reason": reason} | more
    content["traceback"] = f"Traceback {rank}"
    (folder / f"rank{rank}.json").write_text(json.dumps(content))


def test_all_zero_is_a_good_end(tmp_path: Path) -> None:
    assert _outcome([0, 0, 0], tmp_path) == Outcome(code=0)


def test_a_report_without_a_failed_rank_is_a_good_end(tmp_path: Path) -> None:
    report(tmp_path, 1, time=1.0)
    assert _outcome([0, 0], tmp_path) == Outcome(code=0)


def test_the_earliest_report_wins(tmp_path: Path) -> None:
    report(tmp_path, 0, time=5.0, reason="lost its peer")
    report(tmp_path, 2, time=3.0, reason="division by zero")
    report(tmp_path, 1, time=4.0, reason="lost its peer")
    assert _outcome([1, 1, 1], tmp_path) == Outcome(code=1, reason="division by zero", rank=2, traceback="Traceback 2")


def test_a_report_s_code_is_the_outcome_s(tmp_path: Path) -> None:
    report(tmp_path, 0, time=1.0, code=2, reason="datamodule.data_dir=x: no such folder")
    assert _outcome([2, -signal.SIGABRT], tmp_path).code == 2


def test_who_left_first_because_it_was_asked_to_says_by_which_signal(tmp_path: Path) -> None:
    report(tmp_path, 0, time=2.0, reason="connection closed by peer")
    report(tmp_path, 1, time=1.0, code=75, reason="preempted by SIGUSR1", signal=signal.SIGUSR1)
    outcome = _outcome([1, 75], tmp_path)
    assert (outcome.code, outcome.reason, outcome.signal) == (75, "preempted by SIGUSR1", signal.SIGUSR1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGTERM])
def test_a_rank_that_was_killed_precedes_those_that_raised(number: signal.Signals, tmp_path: Path) -> None:
    """They raise because their peer is gone, and say so before the parent has looked."""
    report(tmp_path, 0, time=1.0, reason="connection closed by peer")
    report(tmp_path, 2, time=1.0, reason="connection closed by peer")
    assert _outcome([1, -number, 1], tmp_path) == Outcome(
        code=1, reason=f"rank 1 was killed by {number.name}", rank=1, is_silent=True
    )


def test_a_signal_that_has_no_name_is_called_by_its_number(tmp_path: Path) -> None:
    assert _outcome([-40, 0], tmp_path).reason == "rank 0 was killed by signal 40"


def test_a_rank_that_left_without_a_word_precedes_those_that_raised(tmp_path: Path) -> None:
    report(tmp_path, 0, time=1.0, reason="connection closed by peer")
    assert _outcome([1, 7], tmp_path) == Outcome(code=1, reason="rank 1 ended with code 7 and no word", rank=1, is_silent=True)


def test_of_several_killed_ranks_the_lowest_is_named(tmp_path: Path) -> None:
    assert _outcome([None, -9, -11], tmp_path).reason == "rank 1 was killed by SIGKILL"


def test_a_rank_that_aborts_because_its_peer_raised_is_not_to_blame(tmp_path: Path) -> None:
    report(tmp_path, 1, time=1.0, reason="ValueError: bad")
    outcome = _outcome([-signal.SIGABRT, 1], tmp_path)
    assert (outcome.rank, outcome.reason) == (1, "ValueError: bad")


def test_a_rank_that_aborts_because_its_peer_was_killed_is_not_to_blame(tmp_path: Path) -> None:
    assert _outcome([-signal.SIGABRT, -signal.SIGKILL], tmp_path).rank == 1


def test_an_abort_that_nobody_explains_is_named(tmp_path: Path) -> None:
    outcome = _outcome([None, -signal.SIGABRT], tmp_path)
    assert outcome == Outcome(code=1, reason="rank 1 was killed by SIGABRT", rank=1, is_silent=True)


def test_an_abort_of_which_the_others_know_no_more_than_that_it_was_is_named(tmp_path: Path) -> None:
    report(tmp_path, 0, time=1.0, reason="rank 1 has died; rank 0 has lost its connection to it", has_lost_rank=True)
    assert _outcome([1, -signal.SIGABRT], tmp_path).reason == "rank 1 was killed by SIGABRT"


def test_a_rank_that_ends_without_a_word_is_named_with_its_code(tmp_path: Path) -> None:
    assert _outcome([0, 3, 4], tmp_path) == Outcome(code=1, reason="rank 1 ended with code 3 and no word", rank=1, is_silent=True)


def test_a_rank_that_still_runs_has_not_failed(tmp_path: Path) -> None:
    """The others get a moment after a failure, and are ended after the verdict."""
    report(tmp_path, 1, time=1.0)
    assert _outcome([None, 1], tmp_path).rank == 1


def test_half_a_report_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "rank0.partial").write_text('{"time": 1.0, "ra')
    report(tmp_path, 1, time=2.0)
    assert _outcome([-signal.SIGABRT, 1], tmp_path).rank == 1


def test_ranks_find_themselves_on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "99")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    monkeypatch.setenv("MINE", "stays")
    environment = _environment(world_size=3, port=12345)
    expected = {
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "3",
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "12345",
        "MINE": "stays",
    }
    assert {name: environment[name] for name in expected} == expected


def test_a_rank_understands_what_its_parent_has_set() -> None:
    rank = rank_in(_environment(3, 12345) | {PARENT_PIPE: "7", "RANK": "2", "LOCAL_RANK": "2"})
    assert rank is not None
    assert (rank.started_by, rank.global_rank, rank.world_size, rank.num_nodes) == ("parent", 2, 3, 1)


@pytest.mark.parametrize(("cores", "world_size", "threads"), [(8, 2, "4"), (8, 3, "2"), (2, 4, "1")])
def test_ranks_share_the_cores(cores: int, world_size: int, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "cores", lambda: set(range(cores)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert _environment(world_size, 1)["OMP_NUM_THREADS"] == threads


def test_threads_and_interface_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    environment = _environment(2, 1)
    assert (environment["OMP_NUM_THREADS"], environment["GLOO_SOCKET_IFNAME"]) == ("5", "eth7")


@pytest.mark.parametrize(("names", "chosen"), [(["eth0", "lo"], "lo"), (["en0", "lo0"], "lo0"), (["eth0"], None)])
def test_gloo_uses_the_loopback_where_there_is_one(names: list[str], chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.if_nameindex", lambda: list(enumerate(names, 1)))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert _environment(2, 1).get("GLOO_SOCKET_IFNAME") == chosen


@pytest.mark.parametrize(
    ("report", "code", "reason"),
    [
        ({"code": 1, "reason": "rank 0: the disk is full"}, 1, "rank 0: the disk is full"),
        ({"code": 75, "reason": "preempted by SIGUSR1"}, 75, "preempted by SIGTERM"),
        (None, 75, "preempted by SIGTERM"),  # killed before it could say anything
    ],
)
def test_a_failure_after_a_request_to_stop_is_no_preemption(
    report: dict[str, object] | None, code: int, reason: str, tmp_path: Path
) -> None:
    if report is not None:
        (tmp_path / "rank0.json").write_text(json.dumps(report | {"rank": 0, "time": 1.0, "traceback": None}))
    ended = -signal.SIGTERM if report is None else report["code"]
    ranks: Any = [SimpleNamespace(poll=lambda: ended), SimpleNamespace(poll=lambda: 0)]
    outcome = _watch(ranks, [signal.SIGTERM], tmp_path)
    assert (outcome.code, outcome.reason) == (code, reason)


# Requests that nobody answers

STUCK = "echo $$ >> pids; trap '' TERM; [ $RANK = 0 ] && kill -STOP $$; sleep 60"


@pytest.mark.parametrize(
    ("asked", "deadline", "reason"),
    [
        ([signal.SIGHUP], 0.2, "preempted by SIGHUP, with nothing saved anew: no answer within 0.2 s from rank 0"),
        ([signal.SIGINT] * 2, 60, "preempted by SIGINT, with nothing saved anew: asked for twice"),
    ],
)
def test_ranks_that_are_suspended_or_deaf_are_ended(
    asked: list[int], deadline: float, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setattr(supervisor, "LATE", 0.2)
    monkeypatch.setattr(supervisor, "KILL_GRACE", 0.1)

    def ask() -> None:
        for number in asked:
            os.kill(os.getpid(), number)
            time.sleep(0.3)  # two that wait for a handler are one

    once(lambda: Path("pids").is_file() and len(Path("pids").read_text().split()) == 2, ask)
    outcome = supervise(["sh", "-c", STUCK], 2, tmp_path / "train.log", stop_deadline=deadline)
    assert (outcome.code, outcome.reason, outcome.signal) == (75, reason, asked[0])
    wait_for(lambda: not processes_marked(mark), seconds=30)  # what was killed takes a moment to be gone


def test_what_a_stuck_rank_says_of_itself_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has left within its own deadline; the other one is suspended, and ended by the parent."""
    report(tmp_path, 0, time=1.0, code=75, signal=signal.SIGTERM, unsaved="no answer within 5 s")
    monkeypatch.setattr(supervisor, "LEAVING_TOGETHER", 0.1)
    ranks: Any = [SimpleNamespace(poll=lambda: 75), SimpleNamespace(poll=lambda: None, send_signal=lambda _: None)]
    outcome = _watch(ranks, [signal.SIGINT], tmp_path)
    assert outcome.reason == "preempted by SIGINT, with nothing saved anew: no answer within 5 s"


def test_a_rank_that_has_finished_is_no_preemption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They finish together: the other one hangs in what Python does when it ends."""
    monkeypatch.setattr(supervisor, "FINISHED_TOGETHER", 0.1)
    ranks: Any = [SimpleNamespace(poll=lambda: 0), SimpleNamespace(poll=lambda: None, send_signal=lambda _: None)]
    for received in ([], [signal.SIGTERM]):
        assert _watch(ranks, received, tmp_path) == Outcome(code=0)


# What ranks are reached by, and what they follow


def test_the_port_is_on_the_loopback_and_can_be_listened_on() -> None:
    with reserved_port() as port, socket.create_server(("127.0.0.1", port)), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))
