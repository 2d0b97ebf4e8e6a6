"""`sweep=scaling` ends with a report, and scripts/report.py makes it of any sweep's directory."""

from pathlib import Path

import pytest
from commands import ROOT, python

pytestmark = pytest.mark.slow
REPORT = ROOT / "scripts" / "report.py"
FIXED = ("trainer.accelerator=cpu", "fresh_processes=True", "sweep=scaling", "hydra.sweep.dir=sweep")


def test_a_scaling_sweep_ends_with_its_report_and_a_script_makes_it_again(tmp_path: Path) -> None:
    grid = ("trainer.devices=1,2", "model.optimizer.lr=0.1")
    done = python(ROOT / "tests" / "support" / "fakes" / "program.py", "-m", *FIXED, *grid, cwd=tmp_path, code=0)
    line = "Take 2 devices at lr 0.1: 2x one device (not repeated) at the same val/acc"
    folder = tmp_path / "sweep" / "report"
    assert line in done.stdout
    assert str(folder / "report.html") in done.stdout
    first = (folder / "report.md").read_text()
    assert first.startswith(f"**{line}")
    for path in folder.iterdir():
        path.unlink()
    again = python(REPORT, "sweep", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith(line)
    assert (folder / "report.md").read_text() == first


def test_what_can_not_be_reported_is_refused_in_one_line(tmp_path: Path) -> None:
    for arguments, line in {
        (".",): "SWEEP_DIR=.: names no jobs; use the directory of a sweep",
        (".", "--all-reduce", "none.json"): "--all-reduce=none.json: has no times of an all-reduce",
    }.items():
        done = python(REPORT, *arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.startswith(line)
    assert list(tmp_path.iterdir()) == []
