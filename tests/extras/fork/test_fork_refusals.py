"""A fork that cannot start says so in one line, ends with code 2, and leaves no directory."""

from pathlib import Path

import pytest
import torch
from commands import refused


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "fork=nowhere.ckpt").startswith(f"fork={tmp_path}/nowhere.ckpt: no such file")


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_refused_by_the_ranks(tmp_path: Path) -> None:
    torch.save({"state_dict": {"net.layers.1.weight": torch.zeros(3, 3)}}, tmp_path / "other.ckpt")
    line = refused(tmp_path, "fork=other.ckpt", "model=mlp", "trainer.devices=2")
    assert line.startswith(f"fork={tmp_path}/other.ckpt: of another model: net.layers.1.bias is only in the model")


def test_a_sweep_of_forks_that_are_too_short_is_refused_once_before_any_job(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "epoch": 3}, tmp_path / "old.ckpt")
    line = refused(tmp_path, "fork=old.ckpt", "trainer.max_epochs=4,2", "-m")
    assert line.startswith("job 1 (")
    assert line.endswith(f"): trainer.max_epochs=2: {tmp_path}/old.ckpt is of epoch 3; use 3 or more, or -1")
