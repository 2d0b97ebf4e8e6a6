"""Samples whose order is that of a set, which Python's hash seed decides."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from commands import python
from in_process import become_rank
from plain_lightning import DigitsData
from ranks import in_ranks
from test_plain_lightning import fitted
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset

from lockstep.errors import ConfigError

PROGRAM = "import lockstep.launchers.stop_at_once, sys\nprint(hash('a string'), sys.argv[1:])\n"


def test_all_programs_have_one_hash_seed_unless_the_user_sets_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    other = python("program.py", "x=1", cwd=tmp_path, PYTHONHASHSEED="7").stdout
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    first = python("program.py", "x=1", cwd=tmp_path).stdout
    second = python("program.py", "x=1", cwd=tmp_path, PYTHONHASHSEED="random").stdout  # as container images have it
    assert first == second != other
    assert "['x=1']" in first
    (tmp_path / "host.py").write_text(f"print('begun', flush=True)\nimport hydra\n{PROGRAM}")  # pytest, a notebook
    assert python("host.py", cwd=tmp_path).stdout.count("begun") == 1


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


class OwnPart(DigitsData):
    """Each process makes a part of the data, or draws one, by itself."""

    def __init__(self, batch_size: int, kind: str) -> None:
        super().__init__(batch_size)
        self.kind = kind

    def train_dataloader(self) -> Any:
        rank, ranks = self.trainer.global_rank, self.trainer.world_size  # pyright: ignore[reportOptionalMemberAccess]
        parts = {"half": range(rank, 96, ranks), "split": range(60) if rank == 0 else range(60, 96)}
        if self.kind == "drawn":
            return DataLoader(self.train, 8, sampler=SubsetRandomSampler(parts["half"]))
        return DataLoader(Subset(self.train, parts[self.kind]), 8)


def refusals(rank: int, world_size: int, folder: Path) -> list[str]:
    become_rank(rank, world_size)
    lines = []
    for kind in ("half", "split", "drawn"):
        own = ("datamodule._target_=test_same_samples.OwnPart", f"+datamodule.kind={kind}", f"trainer.devices={world_size}")
        with pytest.raises(ConfigError) as refusal:
            fitted(folder / kind, *own)
        lines.append(str(refusal.value))
    left = ("+trainer.use_distributed_sampler=false", "trainer.max_epochs=1", "model._target_=test_plain_lightning.AtOneRate")
    return [*lines, str(fitted(folder / "left", *own, *left).global_step)]


@pytest.mark.slow
def test_processes_with_data_of_their_own_are_refused(tmp_path: Path) -> None:
    """Half of the samples was trained on, or processes waited for each other."""
    lines = in_ranks(2, partial(refusals, folder=tmp_path), tmp_path)
    key, needs = "trainer.devices=2: train_dataloader has", "; make the same whole in each, or use +trainer.use_distr"
    differ = f"{key} other samples in each process, or draws them in another order{needs}"
    assert lines[0] == lines[1]
    expected = [differ, differ, differ, "6"]
    assert all(line.startswith(begin) for line, begin in zip(lines[0], expected, strict=True))
