"""A learning rate range test over several processes has the curve of one."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from in_process import become_rank
from ranged import measured
from ranks import in_ranks

pytestmark = pytest.mark.slow
OPTIONS = ("lr_range.from=1e-4", "lr_range.to=1e-2", "lr_range.steps=12", "datamodule.global_batch_size=300")


def run_rank(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    return measured(folder, *OPTIONS, f"trainer.devices={world_size}")[0]


def test_two_processes_have_the_curve_of_one(tmp_path: Path) -> None:
    first, second = in_ranks(2, partial(run_rank, folder=tmp_path / "two"), tmp_path)
    alone, _ = measured(tmp_path / "one", *OPTIONS)
    assert first == second
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert first["rates"] == alone["rates"]
    assert first["suggestion"] == pytest.approx(alone["suggestion"])
    assert (tmp_path / "two" / "lr_range.png").is_file()
