"""Compare two checkpoints, bit for bit."""

from pathlib import Path
from typing import Any

import torch

from lockstep.checkpointing import read_checkpoint


def state(run: Path) -> dict[str, Any]:
    """Returns the last checkpoint of a run, less the callbacks' part, which says where the best one is."""
    return read_checkpoint("last", run / "checkpoints" / "last.ckpt") | {"callbacks": None}


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """The places at which two contents of checkpoints differ, in a bit or in kind, but for what a clock has measured."""
    if isinstance(a, dict) and isinstance(b, dict):
        result = [f"{where}/{key}" for key in a.keys() ^ b.keys()]
        both = (a.keys() & b.keys()) - {"seconds_trained"}
        return result + [place for key in both for place in differences(a[key], b[key], f"{where}/{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [place for i, pair in enumerate(zip(a, b, strict=True)) for place in differences(*pair, f"{where}/{i}")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    return [] if type(a) is type(b) and a == b else [f"{where}: {a} and {b}"]
