"""benchmarks/chaos.py in a short form: runs that are killed, or asked to stop, end as if they had not been."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import chaos
import pytest
import torch
from commands import begun, living_in
from waiting import wait_for

from lockstep.atomic_files import write_json

pytestmark = pytest.mark.slow


@pytest.fixture
def run_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Returns what chaos.py says, which must end with code 0."""

    def alive() -> list[int]:
        wait_for(lambda: not living_in(tmp_path), seconds=30, pause=0.2)
        return []

    def run(*arguments: str) -> str:
        monkeypatch.setattr(chaos, "_train", functools.partial(begun, tmp_path))
        monkeypatch.setattr(chaos, "_alive", alive)
        monkeypatch.setattr(sys, "argv", ["chaos.py", *arguments, "--epochs", "2"])
        with pytest.raises(SystemExit) as left:
            chaos.main()
        said = capsys.readouterr().out
        assert left.value.code == 0, said
        return said

    return run


def test_killed_and_equal_in_the_end(run_chaos: Callable[..., str]) -> None:
    said = run_chaos("kill", "1", "--kinds", "2", "--seed", "1")
    row = next(line for line in said.splitlines() if line.startswith("| a run of 2 |"))
    _, runs, kills, _, _, equal = (cell.strip() for cell in row.strip("|").split("|"))
    assert (runs, kills, equal) == ("1", "1", "1 of 1")


@pytest.mark.parametrize("kind", ["2", "sweep"])
def test_asked_at_any_moment_it_ends_and_continues_to_the_same_bits(kind: str, run_chaos: Callable[..., str]) -> None:
    said = run_chaos("stop", "2", "--kinds", kind)
    assert "2 of 2 as they should be" in said
    codes = [int(line.split("|")[3]) for line in said.splitlines() if line.startswith("| a ")]
    assert codes[-1] in (0, 75)


def test_a_difference_is_found(tmp_path: Path) -> None:
    for name, value in (("a", 0.0), ("b", 1e-7)):
        (folder := tmp_path / name / "checkpoints").mkdir(parents=True)
        torch.save({"weight": torch.tensor([value]), "path": f"{tmp_path / name}/x"}, folder / "last.ckpt")
        torch.save({}, folder / "best.ckpt")
        write_json(tmp_path / name / "metrics.json", {"metrics": {"val/acc": 0.5}, "samples": {"train": 3}, "epochs": 1})
        (tmp_path / name / "journal.0").write_text("[0, 0, [2, 0]]\n[0, 1, [1]]\n")
    assert chaos._verdict(tmp_path / "a", tmp_path / "b") == ("last.ckpt/weight", 2, 0)
    assert chaos._verdict(tmp_path / "a", tmp_path / "a") == ("equal", 2, 0)
    (tmp_path / "a" / "journal.0").write_text("[0, 0, [2, 0]]\n[0, 1, [0]]\n[0, 1, [1]]\n")
    difference = "other samples in batch 1 of epoch 0; not every sample once in epoch 0"
    assert chaos._verdict(tmp_path / "a", tmp_path / "a")[0] == difference
