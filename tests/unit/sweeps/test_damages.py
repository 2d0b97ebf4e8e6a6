"""A sweep's directory of which any file has been torn or lost: it goes on, and finished jobs stay finished."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fake_sweep
import pytest

from lockstep.sweeps.jobs import FAILED, FINISHED, INTERRUPTED, WAITING, Exit, state_after
from lockstep.sweeps.sweep_jobs import SweepJobs
from lockstep.sweeps.table import look_at, print_table, write_results

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
    fake_sweep.sweep(folder, [(fake_sweep.job(folder, i, seed=i), state) for i, state in enumerate(STATES)])
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
            is_lost = name.name == "metrics.json"  # the run goes on, and writes it again
            is_unknown = name.name == "status.json"  # until the sweep's command says which job it is
            assert capsys.readouterr().out.count(" finished ") == 2 - is_lost - is_unknown, name
            assert goes_on(folder) == [*[0] * is_lost, 2, 3, 4], name
            assert len([line for line in caplog.messages if str(name) in line]) <= 1


def goes_on(folder: Path) -> list[int]:
    """The same sweep command again: the numbers of the jobs that it would run. Writes its tables."""
    jobs = [fake_sweep.job(folder, i, seed=i) for i in range(len(STATES))]
    sweep_jobs = SweepJobs(folder)
    todo = sweep_jobs.register(jobs)
    write_results(sweep_jobs)
    assert SweepJobs(folder).jobs == sweep_jobs.jobs
    return [int(one.key, 16) for one in todo]


def test_a_job_whose_directory_was_removed_runs_again(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "sweep"))
    shutil.rmtree(SweepJobs(folder).jobs[f"{1:012x}"].directory)
    assert goes_on(folder) == [1, 2, 3, 4]


def test_a_directory_that_a_kill_has_left_half_made_is_no_job_and_is_made_anew(tmp_path: Path) -> None:
    one = fake_sweep.job(tmp_path, 0)
    partial = tmp_path / f".{one.directory.name}.tmp"
    (partial / ".hydra").mkdir(parents=True)
    (partial / ".hydra" / "config.yaml").write_text(fake_sweep.CONFIG)
    sweep_jobs = SweepJobs(tmp_path)
    assert sweep_jobs.jobs == {}
    assert sweep_jobs.register([one]) == [one]
    assert [*tmp_path.iterdir()] == [one.directory]
    assert (SweepJobs(tmp_path).jobs[one.key].status, [*one.directory.iterdir()]) == (WAITING, [one.directory / "status.json"])


def test_what_ends_a_process_after_its_run_has_finished_costs_nothing(tmp_path: Path) -> None:
    """A library that crashes when Python exits: the sweep said failed, and its status a moment later finished."""
    one = fake_sweep.job(tmp_path, 0)
    fake_sweep.sweep(tmp_path, [(one, "finished")])
    for code in (7, -11):
        assert state_after(one.directory, Exit(code)) == (FINISHED, None, 0.5)
    (one.directory / "status.json").write_text('{"status": "running"}')
    assert state_after(one.directory, Exit(-11)) == (FINISHED, None, 0.5)
    (one.directory / "metrics.json").unlink()
    assert state_after(one.directory, Exit(-11)) == (FAILED, "killed by SIGSEGV", None)


def test_a_continued_job_that_can_not_start_does_not_say_why_it_was_stopped_before(tmp_path: Path) -> None:
    """Its row said "preempted by SIGINT", the reason of the earlier start."""
    one = fake_sweep.job(tmp_path, 0)
    fake_sweep.sweep(tmp_path, [(one, "interrupted")])
    (one.directory / "output.log").write_text("the data have gone\n")
    assert state_after(one.directory, Exit(2)) == (FAILED, "ended with code 2: the data have gone", None)
