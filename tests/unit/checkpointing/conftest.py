"""What the tests of checkpoints share."""

from pathlib import Path

import pytest
from steps import content

from lockstep.checkpointing import write_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds last.ckpt of step 2 and previous.ckpt of step 1."""
    for step in (1, 2):
        write_checkpoint(content(step), tmp_path / "last.ckpt", keep_as="previous.ckpt")
    return tmp_path
