"""A fork that cannot start says so in one line, ends with code 2, and leaves no directory."""

from pathlib import Path

import torch
from commands import refused


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "fork=nowhere.ckpt").startswith(f"fork={tmp_path}/nowhere.ckpt: no such file")


def test_a_sweep_of_forks_that_are_too_short_is_refused_once_before_any_job(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "epoch": 3}, tmp_path / "old.ckpt")
    line = refused(tmp_path, "fork=old.ckpt", "trainer.max_epochs=4,2", "-m")
    assert line.startswith("job 1 (")
    assert line.endswith(f"): trainer.max_epochs=2: {tmp_path}/old.ckpt is of epoch 3; use 3 or more, or -1")
