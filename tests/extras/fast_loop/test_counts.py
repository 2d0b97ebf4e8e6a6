"""Metrics that are counted for several batches at once, beside those that each step counts."""

from pathlib import Path

import pytest
from bitwise import differences
from in_process import trained

from lockstep.checkpointing import read_checkpoint
from lockstep.extras.fast_loop import counts
from lockstep.extras.fast_loop.counts import LaterCounts

# 60 batches an epoch, the last a smaller one; the last checkpoint but one is of within the second.
OPTIONS = ("datamodule.batch_size=20", "datamodule.drop_last=false", "trainer.max_steps=101")
OPTIONS += ("guards.checkpoint.every_n_steps=50",)


def test_the_sums_have_the_bits_of_those_that_each_step_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = LaterCounts.count

    def noted(self: LaterCounts) -> None:
        counted.append(self._number)
        count(self)

    monkeypatch.setattr(counts, "_BATCHES", 32)
    monkeypatch.setattr(counts, "_NUMBERS", 1 << 11)
    monkeypatch.setattr(LaterCounts, "count", noted)
    trained(tmp_path / "later", *OPTIONS)
    assert max(counted) == (1 << 11) // 200
    trained(tmp_path / "at_once", *OPTIONS, "guards.fast_loop=null")
    for name in ("previous", "last"):
        files = (tmp_path / run / "checkpoints" / f"{name}.ckpt" for run in ("later", "at_once"))
        later, at_once = ({**(read_checkpoint(name, file) or {}), "callbacks": None} for file in files)
        assert (int(later["train_means"]["count"].sum()) > 0) is (name == "previous")
        assert not differences(later, at_once)
