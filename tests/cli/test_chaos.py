"""benchmarks/chaos.py in a short form: what is killed, or asked to stop at any moment, ends as if it had not been."""

import functools
import sys
from pathlib import Path

import chaos
import forked
import pytest
import torch
from commands import begun
from waiting import wait_for

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


@pytest.mark.parametrize("kind", ["2", "sweep"])
def test_asked_at_any_moment_it_ends_and_continues_to_the_same_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def alive() -> list[int]:
        """What is forked has no mark of its own."""
        wait_for(lambda: not forked.served_in(tmp_path), seconds=30, pause=0.2)
        return []

    monkeypatch.setattr(chaos, "_train", functools.partial(begun, tmp_path))
    monkeypatch.setattr(chaos, "_alive", alive)
    monkeypatch.setattr(sys, "argv", ["chaos.py", "stop", "2", "--kinds", kind, "--epochs", "2"])
    with pytest.raises(SystemExit) as left:
        chaos.main()
    said = capsys.readouterr().out
    assert left.value.code == 0, said
    assert "2 of 2 as they should be" in said
    codes = [int(line.split("|")[3]) for line in said.splitlines() if line.startswith("| a ")]
    assert codes[-1] in (0, 75)


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
