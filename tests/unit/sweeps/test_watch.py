"""A sweep from another terminal: its table, and what damage does to it in between."""

import json
from pathlib import Path

import fake_sweep
import pytest
import sweep

from lockstep.sweeps.sweep_jobs import SweepJobs
from lockstep.sweeps.table import look_at, print_table

STATES = ("finished", "finished", "running", "failed", "waiting", "waiting")


def made(folder: Path, *states: str) -> SweepJobs:
    jobs = [(fake_sweep.job(folder, i, seed=i), state) for i, state in enumerate(states)]
    sweep_jobs = fake_sweep.sweep(folder, [(job, "interrupted" if state == "running" else state) for job, state in jobs])
    for job, state in jobs:
        if state == "running":
            fake_sweep.update(sweep_jobs, job.key, status="running", reason=None)
            (job.directory / "progress.json").write_text(json.dumps({"metrics": {"val/acc": 0.25}}))
    return sweep_jobs


def looked_at(folder: Path) -> SweepJobs:
    with fake_sweep.held(folder):
        return look_at(folder)


def test_a_running_job_shows_its_latest_metric_and_a_failed_one_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, *STATES)
    print_table(looked_at(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert next(line.split() for line in lines if " running " in line) == ["2", "seed=2", "running", "0.25"]
    assert "3 failed: planted" in lines


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
