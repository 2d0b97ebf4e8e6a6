"""Which rank the environment describes, and which process speaks on the terminal."""

import logging
from collections.abc import Callable

import pytest
from environments import PARENT

from lockstep.launchers.environment import Launcher, Rank, RankZeroFilter, is_rank_zero, this_rank

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
