"""The runs below a folder, and the one that goes on by `resume=last`."""

import os
from pathlib import Path

import pytest
from fake_sweep import held
from saved_run import save_run

from lockstep.errors import ConfigError
from lockstep.runs import record
from lockstep.runs.directory import run_directories
from lockstep.runs.resume import command_to_continue, newest_unfinished


def run_in(folder: Path, status: record.Status = "preempted") -> Path:
    save_run(folder, "seed=1")
    record.write_status(folder, status)
    return folder


def last(folder: Path) -> str:
    return str(newest_unfinished(folder).relative_to(folder))


def test_the_command_that_names_it_is_spelled_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_in(tmp_path / "logs" / "task" / "run")
    run_in(tmp_path / "logs" / "sweep" / "job")
    (tmp_path / "logs" / "sweep" / "multirun.yaml").write_text("{}")  # whose jobs go on with their sweep
    monkeypatch.chdir(tmp_path)
    spelled_out = command_to_continue(["resume=last", "test=false"])
    assert spelled_out == command_to_continue([f"resume={run}", "test=false"])
    record.write_status(run, "finished")
    with pytest.raises(ConfigError, match=r"^resume=last: there is no unfinished run below "):
        command_to_continue(["resume=last"])


def test_runs_below_a_folder_are_found_once_through_links_too(tmp_path: Path) -> None:
    disk = run_in(tmp_path / "disk" / "run").parent
    logs = tmp_path / "project" / "logs"
    logs.mkdir(parents=True)
    (logs / "name").symlink_to(disk)
    (disk / "latest").symlink_to("run")
    assert list(run_directories(logs)) == [logs / "name" / "run"]


def test_the_last_one_is_the_newest_that_has_not_finished_and_is_not_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the runs have said of themselves: the times of files are all the other way round."""
    runs = {"logs/task/d": "running", "logs/task/c": "finished", "my runs/b": "running", "logs/a/b/a": "failed"}
    for age, (name, status) in enumerate(runs.items()):
        monkeypatch.setattr(record.time, "strftime", lambda _, age=age: f"2026-11-21T10:0{9 - age}:00+0000")
        os.utime(run_in(tmp_path / name, status) / "status.json", (1e9 + age, 1e9 + age))
    with held(tmp_path / "logs" / "task" / "d"):
        assert last(tmp_path) == "my runs/b"
    assert last(tmp_path) == "logs/task/d"


def test_the_last_one_is_no_run_that_could_not_start(tmp_path: Path) -> None:
    run_in(tmp_path / "trained")
    save_run(tmp_path / "mistyped")
    record.write_status(tmp_path / "mistyped", "failed", **{record.COULD_NOT_START: True})
    assert last(tmp_path) == "trained"
