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
