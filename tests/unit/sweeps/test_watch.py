"""A sweep from another terminal: its table, and what damage does to it in between."""

import json
from pathlib import Path

import fake_sweep
import pytest
import sweep
from rich.console import Console

from lockstep.sweeps.sweep_jobs import SweepJobs
from lockstep.sweeps.table import LiveTable, layout, look_at

STATES = ("finished", "finished", "running", "failed", "waiting", "waiting")


def made(folder: Path, *states: str) -> SweepJobs:
    """Those that run will do so for 20 seconds more."""
    jobs = [(fake_sweep.job(folder, i, seed=i), state) for i, state in enumerate(states)]
    sweep_jobs = fake_sweep.sweep(folder, [(job, "interrupted" if state == "running" else state) for job, state in jobs])
    for job, state in jobs:
        if state == "running":
            fake_sweep.update(sweep_jobs, job.key, status="running", reason=None)
            progress = {"share": 0.34, "seconds_left": 20.0}
            progress |= {"metrics": {"val/acc": 0.25}, "samples_per_second": 1234.5}
            (job.directory / "progress.json").write_text(json.dumps(progress))
    return sweep_jobs


def looked_at(folder: Path) -> SweepJobs:
    with fake_sweep.held(folder):
        return look_at(folder)


def printed(view: SweepJobs, height: int | None = None) -> list[str]:
    console = Console(width=160)
    with console.capture() as text:
        console.print(layout(view, height))
    return text.get().splitlines()


def test_a_running_job_shows_how_far_it_is(tmp_path: Path) -> None:
    made(tmp_path, *STATES)
    lines = printed(looked_at(tmp_path))
    row = next(line.split() for line in lines if " running " in line)
    assert row == ["2", "seed=2", "running", "34%", "0.25", "1,234", "0:00:20"]
    assert "3 failed: planted" in [line.strip() for line in lines]


@pytest.mark.parametrize(
    ("states", "code", "note"),
    [
        (("finished", "failed"), 1, "No sweep process. Continue it: "),
        (("finished", "failed", "running", "waiting"), 75, "No sweep process. Continue it: "),
    ],
)
def test_one_that_nobody_runs_is_shown_with_its_exit_code_and_not_touched(
    states: tuple[str, ...], code: int, note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, *states)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert sweep.watch(tmp_path) == code
    said = capsys.readouterr().out
    assert note in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_elsewhere_than_on_a_terminal_a_change_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep_jobs, table = made(tmp_path, *STATES), LiveTable()
    table.show(sweep_jobs)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines if ": running" not in line] == ["1 of 6", "2 of 6", "3 of 6"]
    table.show(sweep_jobs)
    fake_sweep.update(sweep_jobs, f"{2:012x}", status="failed", reason="planted")
    table.show(sweep_jobs)
    said = capsys.readouterr().out
    assert said.startswith("4 of 6  ")
    assert said.endswith(": failed  planted\n")
    assert said.count("\n") == 1
