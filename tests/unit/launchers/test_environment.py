"""Which rank the environment describes, and the names that follow from it."""

import logging
from collections.abc import Callable

import pytest
from environments import PARENT

from lockstep.launchers.environment import (
    Launcher,
    Rank,
    RankZeroFilter,
    is_rank_zero,
    rank_in,
)

Started = Callable[[dict[str, str]], None]


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({}, None),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, None),  # left over from somebody: nobody we know
        (PARENT, Rank(Launcher(), global_rank=1, local_rank=1, world_size=4, num_nodes=1)),
    ],
)
def test_rank_of_an_environment(env: dict[str, str], rank: Rank | None) -> None:
    assert rank_in(env) == rank


@pytest.mark.parametrize(("env", "speaks"), [({}, True), (PARENT, False), (PARENT | {"RANK": "0"}, True)])
def test_only_rank_zero_speaks_on_the_terminal(env: dict[str, str], speaks: bool, started: Started) -> None:
    started(env)
    assert is_rank_zero() is speaks
    assert RankZeroFilter().filter(logging.makeLogRecord({})) is speaks
