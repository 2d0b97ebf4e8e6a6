"""A sweep whose directory was damaged goes on, and finished jobs stay finished."""

import shutil
from pathlib import Path

import fake_sweep
import pytest

from lockstep.sweeps.jobs import FAILED, FINISHED, PREEMPTED, QUEUED, SweepJobs, read_state

STATES = (FINISHED, FINISHED, FAILED, PREEMPTED, QUEUED)


@pytest.mark.parametrize(("lost", "todo"), [(None, [2, 3, 4]), ("metrics.json", [0, 2, 3, 4]), (".", [0, 2, 3, 4])])
def test_finished_jobs_are_not_run_again_unless_their_record_is_lost(lost: str | None, todo: list[int], tmp_path: Path) -> None:
    jobs = [fake_sweep.job(tmp_path, i, seed=i) for i in range(len(STATES))]
    fake_sweep.sweep(tmp_path, [*zip(jobs, STATES, strict=True)])
    if lost == ".":  # removed by a person
        shutil.rmtree(jobs[0].directory)
    elif lost is not None:
        (jobs[0].directory / lost).unlink()
    sweep_jobs = SweepJobs(tmp_path)
    again = [fake_sweep.job(tmp_path, i, seed=i) for i in range(len(STATES))]
    assert [int(one.key, 16) for one in sweep_jobs.register(again)] == todo
    assert SweepJobs(tmp_path).jobs == sweep_jobs.jobs


def test_a_half_made_directory_is_no_job_and_is_made_anew(tmp_path: Path) -> None:
    one = fake_sweep.job(tmp_path, 0)
    (one.directory / ".hydra.tmp").mkdir(parents=True)
    sweep_jobs = SweepJobs(tmp_path)
    assert sweep_jobs.jobs == {}
    assert sweep_jobs.register([one]) == [one]
    assert SweepJobs(tmp_path).jobs[one.key].status == QUEUED


def test_a_crash_after_the_run_has_finished_costs_nothing(tmp_path: Path) -> None:
    """For example of a library, when Python exits."""
    one = fake_sweep.job(tmp_path, 0)
    fake_sweep.sweep(tmp_path, [(one, "finished")])
    for code in (7, -11):
        assert read_state(one.directory, code) == (FINISHED, None, 0.5)
    (one.directory / "status.json").write_text('{"status": "running"}')
    assert read_state(one.directory, -11) == (FINISHED, None, 0.5)
    (one.directory / "metrics.json").unlink()
    assert read_state(one.directory, -11) == (FAILED, "killed by SIGSEGV", None)
