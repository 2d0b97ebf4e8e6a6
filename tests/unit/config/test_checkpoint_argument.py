"""init_from: a file that is not a whole checkpoint is refused."""

from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from refusals import changed, refusal

from lockstep.config.checks import check


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "some.ckpt"
    torch.save({"state_dict": {"weight": torch.arange(100.0)}}, path)
    return path


def test_a_whole_checkpoint_passes(checkpoint: Path, shipped: DictConfig) -> None:
    check(changed(shipped, init_from=str(checkpoint)))


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path, shipped: DictConfig) -> None:
    for path in (tmp_path / "none.ckpt", tmp_path):  # nothing, and a folder
        assert refusal(changed(shipped, init_from=str(path))).startswith(f"init_from={path}: no such file: {path}; use ")


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_truncated_checkpoint_is_refused(part: float, checkpoint: Path, shipped: DictConfig) -> None:
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: int(len(whole) * part)])
    message = refusal(changed(shipped, init_from=str(checkpoint)))
    assert message.startswith(f"init_from={checkpoint}: not a readable checkpoint (")


def test_a_checkpoint_with_a_flipped_bit_in_a_tensor_is_refused(checkpoint: Path, shipped: DictConfig) -> None:
    content = bytearray(checkpoint.read_bytes())
    content[content.index(torch.arange(100.0).numpy().tobytes()) + 17] ^= 1
    checkpoint.write_bytes(content)
    assert refusal(changed(shipped, init_from=str(checkpoint))) == (
        f"init_from={checkpoint}: the checkpoint is corrupt (at some/data/0)"
    )
