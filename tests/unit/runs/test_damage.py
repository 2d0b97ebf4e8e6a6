"""Checkpoints of another run in a run's directory: it does not begin anew over them."""

from pathlib import Path

import pytest

from lockstep.checkpointing import latest_valid_checkpoint, write_checkpoint
from lockstep.errors import ConfigError


def test_without_any_checkpoint_of_its_own_it_does_not_begin_anew_over_another_s(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("last", "previous", "best"):
        content = {"callbacks": {"LastCheckpoint": {"run_id": "theirs"}}}
        write_checkpoint(content, run / "checkpoints" / f"{name}.ckpt")
    (run / "checkpoints" / "best.ckpt").write_bytes(b"torn")
    line = rf"^resume={run}: every checkpoint is damaged or another run's: last.ckpt, previous.ckpt, best.ckpt; move them away"
    with pytest.raises(ConfigError, match=line):
        latest_valid_checkpoint(run / "checkpoints", "ours")
