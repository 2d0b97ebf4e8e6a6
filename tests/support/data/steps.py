"""Checkpoints that hold hardly more than their step."""

from pathlib import Path
from typing import Any

import torch

from lockstep.checkpointing import read_checkpoint


def content(step: int) -> dict[str, Any]:
    return {"global_step": step, "state_dict": {"weight": torch.full((64, 64), float(step))}, "names": ["a", "b"]}


def read_step(path: Path) -> int:
    checkpoint = read_checkpoint("checkpoint", path)
    assert torch.equal(checkpoint["state_dict"]["weight"], torch.full((64, 64), float(checkpoint["global_step"])))
    return checkpoint["global_step"]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
