"""Which rank the environment describes, and the names that follow from it."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.errors import ConfigError
from lockstep.launchers.environment import (
    ERROR_DIR,
    PARENT_PIPE,
    Rank,
    RankZeroFilter,
    can_resume,
    is_rank_zero,
    output_subdir,
    rank_in,
    rank_log,
    run_id,
    this_rank,
)

PARENT = {PARENT_PIPE: "5", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN |= {"GROUP_WORLD_SIZE": "1"}
TORCHRUN_TWO_NODES = {
    "TORCHELASTIC_RUN_ID": "job7",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}
Started = Callable[[dict[str, str]], None]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Makes this process one that was started with these variables, and no others of a launcher."""
    for name in os.environ:
        if name.startswith(("SLURM_", "TORCHELASTIC_", "LOCKSTEP_")):
            monkeypatch.delenv(name)

    def start(env: dict[str, str]) -> None:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        this_rank.cache_clear()

    this_rank.cache_clear()
    yield start
    this_rank.cache_clear()


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({}, None),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, None),  # left over from somebody: nobody we know
        (PARENT, Rank("parent", global_rank=1, local_rank=1, world_size=4, num_nodes=1)),
        (TORCHRUN, Rank("torchrun", global_rank=1, local_rank=1, world_size=2, num_nodes=1)),
        (TORCHRUN_TWO_NODES, Rank("torchrun", global_rank=5, local_rank=1, world_size=8, num_nodes=2)),
    ],
)
def test_rank_of_an_environment(env: dict[str, str], rank: Rank | None) -> None:
    assert rank_in(env) == rank


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"TORCHELASTIC_RUN_ID": "stray"}, "WORLD_SIZE=: is not set; accepted is the environment of torchrun, all of it"),
        ({"RANK": "x"}, "RANK=x: is not a number; accepted is the environment of torchrun, all of it"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK=x: is not a number; accepted is the environment of torchrun, all of it"),
        (TORCHRUN | {"RANK": "x"}, "RANK=x: is not a number; accepted is the environment of torchrun"),
        (
            TORCHRUN_TWO_NODES | {"WORLD_SIZE": "5"},
            "torchrun --nproc-per-node=4: 2 nodes have 5 processes; accepted is as many on each",
        ),
        (TORCHRUN | {"WORLD_SIZE": "0"}, "WORLD_SIZE=0: is less than 1; accepted is the environment of torchrun"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0: is less than 1; accepted is the environment of"),
        (TORCHRUN | {"RANK": "-1"}, "RANK=-1: is less than 0; accepted is the environment of torchrun"),
    ],
)
def test_what_is_left_of_another_launcher_s_environment_is_named(env: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        rank_in(env)
    assert str(refused.value).startswith(line)


def test_the_rank_is_read_once(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning removes variables while a run lasts."""
    started(PARENT)
    assert this_rank() == rank_in(PARENT)
    monkeypatch.delenv(PARENT_PIPE)
    assert this_rank() == rank_in(PARENT)


def test_run_id_of_one_process_is_its_own(started: Started) -> None:
    started({})
    ids = {run_id() for _ in range(200)}
    assert len(ids) == 200  # all within a second or two: 3 random bytes tell them apart
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_[0-9a-f]{6}", name) for name in ids)


def test_run_id_under_torchrun_is_the_agent_that_all_ranks_have_as_parent(started: Started) -> None:
    started(TORCHRUN)
    first = run_id()
    assert re.fullmatch(rf"torchrun-.+-{os.getppid()}-\d+", first)
    started(TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0"})
    assert run_id() == first


def test_run_id_under_torchrun_is_the_rendezvous_however_many_nodes_there_are(started: Started) -> None:
    started(TORCHRUN_TWO_NODES)
    assert run_id() == "torchrun-job7"
    assert can_resume()
    started(TORCHRUN | {"TORCHELASTIC_RUN_ID": "job7"})
    assert run_id() == "torchrun-job7"
    assert can_resume()
    started(TORCHRUN)
    assert not can_resume()
    started(PARENT | {"TORCHELASTIC_RUN_ID": "job7"})  # a command inside a rank
    assert not can_resume()


def test_torchrun_on_several_nodes_needs_a_rendezvous_id(started: Started) -> None:
    started(TORCHRUN_TWO_NODES | {"TORCHELASTIC_RUN_ID": "none"})
    with pytest.raises(ConfigError, match=r"^torchrun --rdzv-id=none: on several nodes give an id of your own"):
        run_id()


@pytest.mark.parametrize(
    ("env", "log", "subdir"),
    [
        ({}, "train.log", ".hydra"),
        (PARENT, "train.rank1.log", None),
        (PARENT | {"RANK": "0"}, "train.log", None),  # the parent has saved the config
        (TORCHRUN, "train.rank1.log", None),
        (TORCHRUN | {"RANK": "0"}, "train.log", ".hydra"),
    ],
)
def test_one_process_saves_the_config_and_each_has_a_log(
    env: dict[str, str], log: str, subdir: str | None, started: Started, tmp_path: Path
) -> None:
    started(env)
    assert rank_log() == log
    assert output_subdir(None, str(tmp_path)) == subdir
    assert output_subdir("run", str(tmp_path)) == subdir  # continued, but nothing was saved the first time
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").touch()
    assert output_subdir(None, str(tmp_path)) == subdir
    assert output_subdir("run", str(tmp_path)) is None


@pytest.mark.parametrize(("env", "speaks"), [({}, True), (PARENT, False), (PARENT | {"RANK": "0"}, True)])
def test_only_rank_zero_speaks_on_the_terminal(env: dict[str, str], speaks: bool, started: Started) -> None:
    started(env)
    assert is_rank_zero() is speaks
    assert RankZeroFilter().filter(logging.makeLogRecord({})) is speaks


AGENT = """
import os, subprocess, sys
ranks = []
for rank in "210":
    environment = os.environ | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "3"}
    ranks.insert(0, subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=environment, stdin=subprocess.PIPE))
with open("pids", "w") as file:
    file.write(" ".join(str(rank.pid) for rank in ranks))
ranks[0].wait()
"""
RANK = """
import os, sys, time
from lockstep.launchers.environment import dead_ranks
if os.environ["RANK"] == "2":
    sys.stdin.read()
while os.environ["RANK"] == "0" and not (os.path.exists("pids") and dead_ranks()):
    time.sleep(0.05)
print(os.environ["RANK"], dead_ranks())
"""


@pytest.mark.parametrize("launcher", ["TORCHELASTIC_RUN_ID", PARENT_PIPE])
def test_which_rank_has_died_is_seen_from_another(launcher: str, tmp_path: Path) -> None:
    """Rank one ends at once, which rank zero waits for; rank two goes on to the end."""
    env = os.environ | {launcher: "9", ERROR_DIR: str(tmp_path)}
    agent = subprocess.run(
        [sys.executable, "-c", AGENT, RANK], capture_output=True, text=True, check=True, timeout=60, env=env, cwd=tmp_path
    )
    assert "0 [1]" in agent.stdout.splitlines()
