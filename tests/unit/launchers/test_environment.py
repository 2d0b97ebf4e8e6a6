"""Which rank the environment describes, and the names that follow from it."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from capabilities import requires
from environments import PARENT, check_log_and_config

from lockstep.errors import ConfigError
from lockstep.launchers.environment import (
    ERROR_DIR,
    PARENT_PIPE,
    Rank,
    RankZeroFilter,
    is_rank_zero,
    rank_in,
    run_id,
    this_rank,
)

Started = Callable[[dict[str, str]], None]


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({}, None),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, None),  # left over from somebody: nobody we know
        (PARENT, Rank("parent", global_rank=1, local_rank=1, world_size=4, num_nodes=1)),
    ],
)
def test_rank_of_an_environment(env: dict[str, str], rank: Rank | None) -> None:
    assert rank_in(env) == rank


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"RANK": "x"}, "RANK=x: is not a number; accepted is the environment of torchrun, all of it"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK=x: is not a number; accepted is the environment of torchrun, all of it"),
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


@pytest.mark.parametrize(
    ("env", "log", "subdir"),
    [
        ({}, "train.log", ".hydra"),
        (PARENT, "train.rank1.log", None),
        (PARENT | {"RANK": "0"}, "train.log", None),  # the parent has saved the config
    ],
)
def test_one_process_saves_the_config_and_each_has_a_log(
    env: dict[str, str], log: str, subdir: str | None, started: Started, tmp_path: Path
) -> None:
    started(env)
    check_log_and_config(log, subdir, tmp_path)


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


@pytest.mark.parametrize("launcher", [pytest.param("TORCHELASTIC_RUN_ID", marks=requires("torchrun")), PARENT_PIPE])
def test_which_rank_has_died_is_seen_from_another(launcher: str, tmp_path: Path) -> None:
    """Rank one ends at once, which rank zero waits for; rank two goes on to the end."""
    env = os.environ | {launcher: "9", ERROR_DIR: str(tmp_path)}
    agent = subprocess.run(
        [sys.executable, "-c", AGENT, RANK], capture_output=True, text=True, check=True, timeout=60, env=env, cwd=tmp_path
    )
    assert "0 [1]" in agent.stdout.splitlines()
