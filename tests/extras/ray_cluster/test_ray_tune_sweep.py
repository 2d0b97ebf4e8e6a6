"""`python train.py -m sweep=ray_tune`: whole searches."""

import contextlib
import importlib.util
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, python, started
from waiting import wait_for

from lockstep.extras.search.study import load_study
from lockstep.sweeps.sweep_jobs import Job, SweepJobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]
TRAIN, PROGRAM = ROOT / "train.py", ROOT / "tests" / "support" / "fakes" / "program.py"
TUNE = ("-m", "sweep=ray_tune", "trainer=cpu", "hydra.sweep.dir=sweep")
SMALL = ("trainer=cpu", "model=mlp", "datamodule.batch_size=256", "trainer.max_epochs=2")


def jobs(sweep: Path) -> dict[str, Job]:
    return SweepJobs(sweep).jobs


def results(sweep: Path) -> dict[str, Any]:
    """By the job's identity: how it has ended, and its metrics, to the bit."""
    records = {key: json.loads((sweep / job.directory.name / "metrics.json").read_text()) for key, job in jobs(sweep).items()}
    return {key: (jobs(sweep)[key].reason, record["metrics"]) for key, record in records.items()}


def finished(sweep: Path) -> dict[str, Job]:
    return {key: job for key, job in jobs(sweep).items() if job.status == "finished"}


def with_journal(journal: Path) -> dict[int, str]:
    """By their numbers the processes that this test's command has started, directly or not, with what they are called."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if f"JOURNAL={journal}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().split(b"\0")[0].decode().strip()
    return found


def rays(journal: Path) -> set[str]:
    return {*with_journal(journal).values()}


def test_jobs_that_asha_gives_up_end_as_pruned_ones(tmp_path: Path) -> None:
    done = python(TRAIN, *TUNE, *SMALL, "hydra.sweeper.n_trials=3", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    reasons = Counter(reason for reason, _ in results(tmp_path / "sweep").values())
    assert reasons == {"trainer.max_epochs=2": 2, "pruned after 1 validations": 1}  # the second is the worst after an epoch
    trials = load_study(tmp_path / "sweep").trials
    assert [len(trial.intermediate_values) for trial in trials if trial.state.name == "COMPLETE"] == [2, 2]


def test_a_search_on_ray_that_is_killed_runs_no_job_twice(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    command = (
        PROGRAM,
        *TUNE,
        "hydra/launcher=ray",
        "hydra.launcher.num_cpus=2",
        "hydra.sweeper.n_jobs=2",
        "hydra.sweeper.n_trials=5",
    )
    with started(*command, cwd=tmp_path, fresh=True, JOURNAL=str(journal)) as process:
        wait_for(lambda: len([*journal.glob("*.began")]) >= 3, seconds=300, pause=0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: rays(journal) == {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}, seconds=60, pause=0.5)
        for pid in with_journal(journal):  # which Ray leaves when who has started it is killed
            os.kill(pid, signal.SIGKILL)
    first = finished(tmp_path / "sweep")
    assert len(first) >= 2
    done = python(*command, cwd=tmp_path, timeout=300, fresh=True, JOURNAL=str(journal))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(finished(tmp_path / "sweep")) == 5
    assert first.items() <= finished(tmp_path / "sweep").items()
    assert Counter(path.read_text() for path in journal.glob("*.finished")).most_common(1)[0][1] == 1
