"""A sweep's directory of which any file has been torn or lost: it goes on, and finished jobs stay finished."""

import csv
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fake_sweep
import pytest

from lockstep.sweeps.job_directory import state_after
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.results import write_results
from lockstep.sweeps.states import FAILED, FINISHED, INTERRUPTED, WAITING, Exit
from lockstep.sweeps.table import print_table
from lockstep.sweeps.view import SweepView, look_at

STATES = (FINISHED, FINISHED, FAILED, INTERRUPTED, WAITING)
DAMAGES = ("cut", "lost")


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    folder.mkdir()
    fake_sweep.sweep(folder, {fake_sweep.job(folder, i, seed=i): state for i, state in enumerate(STATES)})
    return folder


@contextmanager
def copied_to(whole: Path, place: Path) -> Iterator[Path]:
    """Of links, since nothing is written in place; removed again."""
    shutil.copytree(whole, place / "sweep", copy_function=os.link)
    yield place / "sweep"
    shutil.rmtree(place / "sweep")


@pytest.mark.parametrize("how", DAMAGES)
def test_any_file_may_be_damaged(
    how: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Of the sweep itself, and of a job that has finished."""
    files = sorted(path for pattern in ("*", "*seed=0*/**/*") for path in whole.glob(pattern) if path.is_file())
    for name in [path.relative_to(whole) for path in files]:
        with copied_to(whole, tmp_path) as folder:
            damage(folder / name, how)
            caplog.clear()
            capsys.readouterr()
            print_table(look_at(folder))
            assert capsys.readouterr().out.count(" finished ") == 2, name
            assert goes_on(folder) == [2, 3, 4], name
            assert len([line for line in caplog.messages if str(name) in line]) <= 1


def goes_on(folder: Path) -> list[int]:
    """The same sweep command again: the numbers of the jobs that it would run. Writes its tables."""
    jobs = [fake_sweep.job(folder, i, seed=i) for i in range(len(STATES))]
    manifest = Manifest(folder)
    manifest.reconcile()
    manifest.add_call("train.py", [], ["seed=0,1"], folder.parent)
    todo = manifest.register(jobs)
    write_results(SweepView(manifest))
    assert Manifest(folder).jobs == manifest.jobs
    return [jobs.index(one) for one in todo]


def test_a_lost_manifest_is_made_anew_from_the_jobs(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "sweep"))
    before = Manifest(folder)
    (folder / "manifest.json").unlink()
    after = Manifest(folder)
    assert (after.calls, after.cwd) == (before.calls, before.cwd)
    assert [job["status"] for job in after.jobs.values()] == list(STATES)
    for name in ("number", "overrides", "metric", "directory", "devices", "command", "repetition", "optimized_mode"):
        assert [job[name] for job in after.jobs.values()] == [job[name] for job in before.jobs.values()]


def test_a_finished_job_whose_directory_is_gone_keeps_its_metric_until_it_is_asked_for_again(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lost it to who only looked, or asked for other jobs in that directory."""
    folder = Path(shutil.copytree(whole, tmp_path / "sweep"))
    shutil.rmtree(folder / Manifest(folder).jobs[f"{1:012x}"]["directory"])
    manifest = Manifest(folder)
    manifest.reconcile()
    write_results(SweepView(manifest))
    (row,) = (one for one in csv.DictReader((folder / "results.csv").read_text().splitlines()) if one["key"] == f"{1:012x}")
    assert (row["status"], row["metric"], row["reason"]) == ("finished", "0.5", "its directory is gone")
    print_table(look_at(folder))
    assert "\n1 finished: its directory is gone\n" in capsys.readouterr().out
    assert goes_on(folder) == [1, 2, 3, 4]


def test_what_ends_a_process_after_its_run_has_finished_costs_nothing(tmp_path: Path) -> None:
    """A library that crashes when Python exits: the sweep said failed, and its status a moment later finished."""
    one = fake_sweep.job(tmp_path, 0)
    fake_sweep.sweep(tmp_path, {one: "finished"})
    for code in (7, -11):
        assert state_after(one.directory, Exit(code)) == (FINISHED, None, 0.5)
    (one.directory / "status.json").write_text('{"status": "running"}')
    assert state_after(one.directory, Exit(-11)) == (FAILED, "killed by SIGSEGV", None)
