"""The scripts that find a learning rate and a batch size."""

from pathlib import Path

import pytest
import torch
from commands import ROOT, python
from torch import Tensor

from lockstep.nets import MLP

pytestmark = pytest.mark.slow


class Hungry(MLP):
    """A net for which more than 37 samples at once are too many."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 37:
            raise torch.OutOfMemoryError("CUDA out of memory. Planted.")
        return super().forward(x)


def test_a_rate_is_suggested_for_the_global_batch(tmp_path: Path) -> None:
    options = ("model=mlp", "trainer.accelerator=cpu", "trainer.devices=2", "--to", "10", "--steps", "60")
    done = python(ROOT / "scripts" / "lr_range.py", *options, cwd=tmp_path, code=0)
    rate = done.stdout.partition("model.optimizer.lr=")[2].split()[0]
    assert 1e-5 < float(rate) < 1
    assert [path.name for path in tmp_path.iterdir()] == ["lr_range.png"]


def test_the_largest_batch_is_found(tmp_path: Path) -> None:
    options = ("model=mlp", "model.net._target_=test_tuning.Hungry", "trainer.accelerator=cpu", "trainer.devices=2")
    done = python(ROOT / "scripts" / "batch_size.py", *options, cwd=tmp_path, code=0)
    assert done.stdout.splitlines()[-1] == "The largest batch that fits: datamodule.batch_size=35"  # 5% less than 37
    assert list(tmp_path.iterdir()) == []
