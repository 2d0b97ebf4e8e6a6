"""Samples whose order is that of a set, which Python's hash seed decides."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from commands import python
from plain_lightning import DigitsData
from test_accumulation import Stream
from test_plain_lightning import fitted
from torch.utils.data import Dataset, Subset, TensorDataset

from lockstep.errors import ConfigError
from lockstep.extras.plain_lightning.same_samples import fingerprint

PROGRAM = "import lockstep.launchers.stop_at_once, sys\nprint(hash('a string'), sys.argv[1:])\n"


def test_all_programs_have_one_hash_seed_unless_the_user_sets_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    other = python("program.py", "x=1", cwd=tmp_path, PYTHONHASHSEED="7").stdout
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    first, second = (python("program.py", "x=1", cwd=tmp_path).stdout for _ in range(2))
    assert first == second != other
    assert "['x=1']" in first


class Named(DigitsData):
    """Numbers classes in an order that another process need not have."""

    first: ClassVar[int] = 0

    def __init__(self, batch_size: int = 100, other: bool = False) -> None:
        super().__init__(batch_size)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        x, y = zip(*self.train, strict=True)
        self.train = TensorDataset(torch.stack(x), (torch.stack(y) + self.first) % 10)


def test_a_run_that_would_go_on_with_other_samples_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("model._target_=test_plain_lightning.AtOneRate", "datamodule._target_=test_same_samples.Named")
    own += ("trainer.limit_train_batches=2",)
    fitted(tmp_path, *own, "trainer.max_epochs=1")
    last = tmp_path / "checkpoints" / "last.ckpt"
    monkeypatch.setattr(Named, "first", 1)
    with pytest.raises(ConfigError, match=r"last.ckpt: train_dataloader has other samples than this run was trained on "):
        fitted(tmp_path, *own, ckpt_path=last)
    assert fitted(tmp_path, *own, "+datamodule.other=true", ckpt_path=last).global_step == 4  # data that was changed


class Drawn(Dataset[Any]):
    """Draws from a generator of its own, and opens something where it is first read."""

    def __init__(self) -> None:
        self.random, self.opened = np.random.default_rng(0), False

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        self.opened = True
        return {"x": self.random.random(), "name": "a"}


def test_a_fingerprint_is_of_the_first_three_samples_and_the_last_and_reads_a_copy() -> None:
    rows = torch.arange(20).reshape(10, 2)
    whole = fingerprint(TensorDataset(rows))
    assert whole == fingerprint(TensorDataset(rows.clone()))
    assert whole == fingerprint(TensorDataset(rows.index_fill(0, torch.tensor([5]), 0)))
    for place in (0, 1, 2, 9):
        assert fingerprint(TensorDataset(rows.index_fill(0, torch.tensor([place]), 7))) != whole
    assert fingerprint(Subset(TensorDataset(rows), range(9))) != whole
    drawn = Drawn()
    assert [fingerprint(drawn), fingerprint(Stream()), fingerprint([])] == [None] * 3
    assert (drawn.opened, drawn.random.random()) == (False, np.random.default_rng(0).random())
