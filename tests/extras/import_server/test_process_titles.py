"""What ranks and jobs are called."""

from pathlib import Path

import pytest

from lockstep.extras.import_server.events import process_name
from lockstep.launchers.environment import PARENT_PIPE, SWEPT_KEYS, this_rank


@pytest.mark.parametrize(
    ("variables", "title"),
    [
        ({}, None),
        ({SWEPT_KEYS: "model.optimizer.lr"}, "lockstep job lr=0.01_abc"),
        (
            {SWEPT_KEYS: "seed", PARENT_PIPE: "9", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4"},
            "lockstep rank 1/4 lr=0.01_abc",
        ),
    ],
)
def test_ranks_and_jobs_have_names(variables: dict[str, str], title: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    this_rank.cache_clear()
    try:
        assert process_name(Path("/runs/lr=0.01_abc")) == title
    finally:
        this_rank.cache_clear()
