"""The promise, from the command line: the result does not depend on the number of processes."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import train

pytestmark = pytest.mark.slow
LENGTH = 360  # of the test set


def test_training_on_one_and_three_processes_is_the_same(tmp_path: Path) -> None:
    """A net with BatchNorm, at one global batch; the tail of 1293 - 26 * 48 = 45 samples is split 15 each."""
    options = ("model=cnn", "model.net.width=8", "trainer.sync_batchnorm=true", "trainer.max_epochs=2")
    batches = ("datamodule.global_batch_size=48", "datamodule.drop_last=false", "datamodule.standardize=true")
    results: list[dict[str, Any]] = []
    for devices in (1, 3):
        done = train(*options, *batches, f"trainer.devices={devices}", f"hydra.run.dir=on{devices}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        results.append(json.loads((tmp_path / f"on{devices}" / "metrics.json").read_text()))
    assert [result["world_size"] for result in results] == [1, 3]
    assert {result["global_batch_size"] for result in results} == {48}
    assert {result["samples_trained"] for result in results} == {2 * 1293}
    alone = results[0]["metrics"]
    for result in results[1:]:
        assert abs(result["metrics"]["test/acc"] - alone["test/acc"]) * LENGTH <= 1 + 1e-9
        for name in ("train/loss", "val/loss", "test/loss"):
            assert result["metrics"][name] == pytest.approx(alone[name], rel=1e-3)
