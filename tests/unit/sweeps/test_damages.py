"""A sweep's directory of which any file has been torn, emptied, flipped in bits, or lost: it goes on, and finished jobs stay
finished."""

import csv
import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fake_sweep
import pytest

from lockstep.errors import ExitCode
from lockstep.sweeps.job_directory import archive, read_log_tail, state_after
from lockstep.sweeps.manifest import UNREADABLE, Manifest
from lockstep.sweeps.results import write_results
from lockstep.sweeps.states import FAILED, FINISHED, INTERRUPTED, WAITING, Exit
from lockstep.sweeps.table import print_table, shorten
from lockstep.sweeps.view import SweepView, look_at

STATES = (FINISHED, FINISHED, FAILED, INTERRUPTED, WAITING)
DAMAGES = ("cut", "emptied", "lost", "flipped")


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    path.unlink()
    if how.startswith("flipped"):
        dice = random.Random(f"{how} of {path.name}")
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(7)
        path.write_bytes(data)
    elif how != "lost":
        path.write_bytes(data[: len(data) // 2] if how == "cut" else b"")


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


@pytest.mark.parametrize("name", ["asked", "repetition", "optimized_mode"])
def test_a_manifest_with_a_value_of_another_kind_is_read_from_the_jobs(name: str, whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "sweep"))
    content = json.loads((folder / "manifest.json").read_text())
    content["jobs"][f"{0:012x}"][name] = [1]
    (folder / "manifest.json").write_text(json.dumps(content))
    print_table(look_at(folder))
    assert goes_on(folder) == [2, 3, 4]


def test_a_lost_manifest_is_made_anew_from_the_jobs(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "sweep"))
    before = Manifest(folder)
    (folder / "manifest.json").unlink()
    after = Manifest(folder)
    assert (after.calls, after.cwd) == (before.calls, before.cwd)
    assert [job["status"] for job in after.jobs.values()] == list(STATES)
    for name in ("number", "overrides", "metric", "directory", "devices", "command", "repetition", "optimized_mode"):
        assert [job[name] for job in after.jobs.values()] == [job[name] for job in before.jobs.values()]


def test_with_the_manifest_and_all_metadata_lost_finished_jobs_stay_finished(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "sweep"))
    for path in [folder / "manifest.json", *folder.glob("*/job.json")]:
        path.unlink()
    assert goes_on(folder) == [2, 3, 4]


def test_a_job_that_nothing_can_be_read_of_is_a_row_that_says_so(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest cannot be read, nor the metadata of a finished job; and no command names the job again, as in a search."""
    folder = Path(shutil.copytree(whole, tmp_path / "sweep"))
    lost = Manifest(folder).jobs[f"{1:012x}"]["directory"]
    (folder / lost / "job.json").write_text("")
    (folder / "manifest.json").write_text("{")
    view = look_at(folder)
    write_results(view)
    print_table(view)
    assert f" {lost} " in capsys.readouterr().out
    (row,) = (line for line in (folder / "results.csv").read_text().splitlines() if lost in line)
    assert FAILED in row
    assert "job.json can't be read" in row
    assert [job.directory.name for job in view.jobs if job.reason == UNREADABLE] == [lost]
    manifest = view.manifest
    manifest.jobs = {key: job for key, job in manifest.jobs.items() if job["status"] == FINISHED or job["reason"] == UNREADABLE}
    assert SweepView(manifest).exit_code == ExitCode.FAILED
    Manifest(folder).save()  # as the next sweep does
    assert goes_on(folder) == [2, 3, 4]  # the command that names it finds it finished
    assert UNREADABLE not in [job["reason"] for job in Manifest(folder).jobs.values()]


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


def test_archived_attempts_never_collide_and_are_no_runs_to_tensorboard(tmp_path: Path) -> None:
    for attempt in range(3):
        (tmp_path / "tensorboard").mkdir()
        (tmp_path / "tensorboard" / "events.out.tfevents.1.host").write_text(str(attempt))
        (tmp_path / "job.json").write_text("{}")
        archive(tmp_path)
    archive(tmp_path)  # nothing is left: no attempt
    kept = [(tmp_path / "attempts" / str(n) / "tensorboard" / "events.out.tf-events.1.host").read_text() for n in (1, 2, 3)]
    assert kept == ["0", "1", "2"]
    assert {path.name for path in tmp_path.iterdir()} == {"attempts", "job.json"}
    assert not list(tmp_path.rglob("*tfevents*"))  # what TensorBoard looks for


def test_a_job_that_could_not_say_why_it_was_refused_names_its_log(tmp_path: Path) -> None:
    """The disk of its directory is full: the file is there, and empty."""
    (log := tmp_path / "output.log").touch()
    refused = state_after(tmp_path, Exit(ExitCode.REFUSED))
    assert (refused.status, refused.reason) == (FAILED, f"ended with code 2: {log} is empty and its disk may be full")
    assert shorten(refused.reason or "").endswith(".../output.log is empty and its disk may be full")  # in a table
    log.write_text("seed=x: accepted is a number\n")
    assert state_after(tmp_path, Exit(ExitCode.REFUSED)).reason == "ended with code 2: seed=x: accepted is a number"


def test_a_signal_without_a_name_is_a_reason_like_others(tmp_path: Path) -> None:
    """Its number had no name, and ended the sweep in a stack trace."""
    assert state_after(tmp_path, Exit(-40)) == (FAILED, "killed by signal 40", None)


def test_what_a_job_says_at_great_length_is_recorded_by_its_end(tmp_path: Path) -> None:
    """A manifest of 200 MB was written at each change of a job."""
    (tmp_path / "output.log").write_text("x" * 10**6 + "\nthe end\n")
    assert read_log_tail(tmp_path)[-1] == "the end"
    assert sum(map(len, read_log_tail(tmp_path))) < 2**14
    (tmp_path / "status.json").write_text(json.dumps({"status": "failed", "reason": "rank 0: " + "x" * 10**6}))
    reason = state_after(tmp_path, Exit(1)).reason
    assert reason is not None
    assert (reason[:9], len(reason)) == ("rank 0: x", 2**14)


def test_what_ends_a_process_after_its_run_has_finished_costs_nothing(tmp_path: Path) -> None:
    """A library that crashes when Python exits: the sweep said failed, and its status a moment later finished."""
    one = fake_sweep.job(tmp_path, 0)
    fake_sweep.sweep(tmp_path, {one: "finished"})
    for code in (7, -11):
        assert state_after(one.directory, Exit(code)) == (FINISHED, None, 0.5)
    (one.directory / "status.json").write_text('{"status": "running"}')
    assert state_after(one.directory, Exit(-11)) == (FAILED, "killed by SIGSEGV", None)


def test_a_copy_of_a_job_s_directory_is_no_job(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "sweep"))
    first = next(iter(Manifest(folder).jobs.values()))["directory"]
    shutil.copytree(folder / first, folder / "backup")
    shutil.copytree(folder / first, folder / f"copy_{first}")
    assert json.loads((folder / "manifest.json").read_text())["jobs"] == Manifest(folder).jobs
