"""benchmarks/chaos.py in a short form: a run of two processes that is killed ends as if it had not been."""

import functools
import sys
from pathlib import Path

import chaos
import pytest
import torch
from commands import begun

from lockstep.atomic_files import write_json

pytestmark = pytest.mark.slow


def test_killed_and_equal_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(chaos, "_train", functools.partial(begun, tmp_path))
    monkeypatch.setattr(sys, "argv", ["chaos.py", "kill", "1", "--kinds", "2", "--epochs", "2", "--seed", "1"])
    with pytest.raises(SystemExit) as left:
        chaos.main()
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| a run of 2 |"))
    _, runs, kills, _, _, equal = (cell.strip() for cell in row.strip("|").split("|"))
    assert (left.value.code, runs, kills, equal) == (0, "1", "1", "1 of 1")


def test_a_difference_is_found(tmp_path: Path) -> None:
    for name, value in (("a", 0.0), ("b", 1e-7)):
        folder = tmp_path / name / "checkpoints"
        folder.mkdir(parents=True)
        for checkpoint in ("last.ckpt", "best.ckpt"):
            content = {"weight": torch.tensor([value]), "path": f"{tmp_path / name}/x"}
            torch.save(content if checkpoint == "last.ckpt" else {}, folder / checkpoint)
        write_json(tmp_path / name / "metrics.json", {"metrics": {"val/acc": 0.5}, "samples": {"train": 3}, "epochs": 1})
        (tmp_path / name / "journal.0").write_text("[0, 0, [2, 0]]\n[0, 1, [1]]\n")
    assert chaos._verdict(tmp_path / "a", tmp_path / "b") == ("last.ckpt/weight", 2, 0)
    assert chaos._verdict(tmp_path / "a", tmp_path / "a") == ("equal", 2, 0)
    (tmp_path / "a" / "journal.0").write_text("[0, 0, [2, 0]]\n[0, 1, [0]]\n[0, 1, [1]]\n")
    assert chaos._verdict(tmp_path / "a", tmp_path / "a")[0] == (
        "other samples in batch 1 of epoch 0; not every sample once in epoch 0"
    )
