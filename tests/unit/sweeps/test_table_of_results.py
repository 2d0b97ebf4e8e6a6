"""The table of a sweep: means over jobs, and shortened reasons of failures."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fake_sweep
import pytest
import sweep

from lockstep.sweeps.jobs import SweepJobs
from lockstep.sweeps.table import look_at, mean_rows, print_table, write_results

LONG = "rank 0: at step 3 the loss is nan, of samples " + ", ".join(map(str, range(64)))


def finished(folder: Path, metrics: Sequence[float], hidden: Sequence[int], mode: str = "max") -> SweepJobs:
    """A sweep over seeds; jobs of another `hidden` were composed of an edited file."""
    jobs = [fake_sweep.job(folder, number, seed=number) for number in range(len(metrics))]
    sweep_jobs = fake_sweep.sweep(folder, [(one, "finished") for one in jobs])
    for one, metric, size in zip(jobs, metrics, hidden, strict=True):
        fake_sweep.leave(one, "finished", metric, hidden=size)
        fake_sweep.update(sweep_jobs, one.key, optimized_mode=mode)
    return sweep_jobs


def row(folder: Path) -> dict[str, Any]:
    with (folder / "results.csv").open(newline="") as file:
        (only,) = csv.DictReader(file)
    return only


def test_jobs_of_an_edited_config_are_kept_apart(tmp_path: Path) -> None:
    rows = mean_rows(finished(tmp_path, (0.9, 0.7, 0.2, 0.4, 0.3), (256, 256, 128, 128, 128)))
    assert [(row["jobs"], row["mean"]) for row in rows] == [("2", "0.8"), ("3", "0.3")]


@pytest.mark.parametrize(("mode", "means"), [("max", ["0.7", "0.5"]), ("min", ["0.5", "0.7"])])
def test_the_best_mean_comes_first_whichever_has_the_best_single_job(tmp_path: Path, mode: str, means: list[str]) -> None:
    rows = mean_rows(finished(tmp_path, (0.9, 0.1, 0.6, 0.8), (256, 256, 128, 128), mode))
    assert [row["mean"] for row in rows] == means


def test_one_config_is_one_group_however_it_is_spelled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep_jobs = finished(tmp_path, (0.5, 0.7), (1, 1))
    fake_sweep.update(sweep_jobs, f"{1:012x}", overrides=["model.optimizer.lr=1e-1", "seed=1"])
    assert [row["jobs"] for row in mean_rows(sweep_jobs)] == ["2"]
    print_table(sweep_jobs)
    assert re.search(r"2 +val/acc +0\.6 +0\.141", capsys.readouterr().out)


def test_a_reason_with_the_name_of_a_file_that_is_no_text_is_written(tmp_path: Path) -> None:
    """The sweep ended in a stack trace, and without a table."""
    sweep_jobs = fake_sweep.sweep(tmp_path, [((one := fake_sweep.job(tmp_path, 0)), "failed")])
    fake_sweep.update(sweep_jobs, one.key, reason="no image: \udcff.png")
    write_results(sweep_jobs)
    assert r"no image: \udcff.png" in (tmp_path / "results.csv").read_text()


@pytest.mark.parametrize(
    ("reason", "in_file", "shown"),
    [
        (LONG, "rank 0: at step 3 the loss is nan", "at step 3 the loss is nan"),
        ("a|b\n[/x] :x:", "a|b\n[/x] :x:", "[/x] :x:"),  # one line, and no markup
    ],
)
def test_a_reason_is_written_whatever_it_holds_and_its_first_words_shown(
    reason: str, in_file: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_jobs = fake_sweep.sweep(tmp_path, [((one := fake_sweep.job(tmp_path, 0)), "failed")])
    fake_sweep.update(sweep_jobs, one.key, reason=reason)
    write_results(sweep_jobs)
    assert row(tmp_path)["reason"].startswith(in_file)
    print_table(sweep_jobs)
    said = capsys.readouterr().out
    assert shown in said
    assert "samples 0" not in said + (tmp_path / "results.csv").read_text()
    assert SweepJobs(tmp_path).jobs[one.key].reason == reason


def test_a_sweep_is_shown_as_it_stands_whoever_runs_it_and_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = ("finished", "preempted", "failed", "queued")
    jobs = [(fake_sweep.job(tmp_path, number, seed=number), state) for number, state in enumerate(states)]
    sweep_jobs, running = fake_sweep.sweep(tmp_path, jobs), jobs[1][0]
    fake_sweep.update(sweep_jobs, running.key, status="running", reason=None)
    (running.directory / "progress.json").write_text('{"metrics": {"val/acc": 0.25}}')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {job.status for job in look_at(tmp_path).ranked} == {*states}
    assert sweep.watch(tmp_path) == 75  # some of it is left to do
    assert "No sweep process. Continue it: " in capsys.readouterr().out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with fake_sweep.held(tmp_path):
        print_table(look_at(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert next(line.split() for line in lines if " running " in line) == ["1", "seed=1", "running", "0.25"]
    assert "job 2 failed: planted" in lines
