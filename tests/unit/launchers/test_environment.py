"""Which rank the environment describes, and the names that follow from it."""

import logging
import re
from collections.abc import Callable

import pytest
from environments import PARENT

from lockstep.launchers.environment import (
    Rank,
    RankZeroFilter,
    is_rank_zero,
    rank_in,
    rank_log,
    run_id,
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


def test_run_id_of_one_process_is_its_own(started: Started) -> None:
    started({})
    ids = {run_id() for _ in range(200)}
    assert len(ids) == 200  # all within a second or two: 3 random bytes tell them apart
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_[0-9a-f]{6}", name) for name in ids)


@pytest.mark.parametrize(("env", "log"), [({}, "train.log"), (PARENT, "train.rank1.log"), (PARENT | {"RANK": "0"}, "train.log")])
def test_each_process_has_a_log(env: dict[str, str], log: str, started: Started) -> None:
    started(env)
    assert rank_log() == log


@pytest.mark.parametrize(("env", "speaks"), [({}, True), (PARENT, False), (PARENT | {"RANK": "0"}, True)])
def test_only_rank_zero_speaks_on_the_terminal(env: dict[str, str], speaks: bool, started: Started) -> None:
    started(env)
    assert is_rank_zero() is speaks
    assert RankZeroFilter().filter(logging.makeLogRecord({})) is speaks
