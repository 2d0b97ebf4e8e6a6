"""`sweep=scaling` ends with a report, scripts/report.py makes it of any sweep's directory, scripts/allreduce.py measures."""

import json
from pathlib import Path

import pytest
from commands import ROOT, python


def test_it_prints_and_writes_the_times_of_all_counts_up_to_the_largest(tmp_path: Path) -> None:
    options = ("--processes", "2", "3", "--seconds", "0.1", "--largest", "0.01", "--json", "times.json", "--backend", "gloo")
    done = python(ROOT / "scripts" / "allreduce.py", *options, cwd=tmp_path, GLOO_SOCKET_IFNAME="lo", code=0)
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line.split()[0].isdecimal()]
    assert rows == [[count, size] for count in ("2", "3") for size in ("1", "4")]
    written = json.loads((tmp_path / "times.json").read_text())["processes"]
    assert {count: times["sizes"] for count, times in written.items()} == {"2": [1024, 4096], "3": [1024, 4096]}


REPORT = ROOT / "scripts" / "report.py"
FIXED = ("trainer.accelerator=cpu", "fresh_processes=True", "sweep=scaling", "hydra.sweep.dir=sweep")


@pytest.mark.slow
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
