"""Sweeps of a small program, tests/support/fakes/program.py: failures, resumption, and a sweep process that is killed."""

import csv
import hashlib
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, TIMEOUT, living_in, python, started
from waiting import wait_for

from lockstep.sweeps.jobs import Job, SweepJobs

pytestmark = pytest.mark.slow
PROGRAM = ROOT / "tests" / "support" / "fakes" / "program.py"
FIXED = ("trainer.accelerator=cpu", "fresh_processes=True")  # it does without torch, which a server would import for it


def sweep(folder: Path, *overrides: str, **env: str) -> Any:
    return python(PROGRAM, "-m", *FIXED, "hydra.sweep.dir=sweep", *overrides, cwd=folder, **env)


def jobs(folder: Path) -> dict[str, Job]:
    """Return the jobs by the values of their learning rate and seed."""
    return {" ".join(job.overrides[len(FIXED) :]): job for job in SweepJobs(folder / "sweep").jobs.values()}


def digest(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_each_way_to_fail_is_recorded_and_the_others_run(tmp_path: Path) -> None:
    done = sweep(tmp_path, "seed=0,1,2,3,4,5", "hydra.launcher.jobs=2", FAULTS="1")
    assert done.returncode == 1
    results = {name: (job.status, job.reason) for name, job in jobs(tmp_path).items()}
    assert results == {
        "seed=0": ("finished", None),
        "seed=1": ("failed", "ended with code 1: planted fault"),
        "seed=2": ("failed", "killed by SIGKILL"),
        "seed=3": ("failed", "ended with code 7"),
        "seed=4": ("failed", "ended with code 0 and no record"),
        "seed=5": ("failed", "val/acc not finite"),
    }
    assert "planted fault" in done.stdout
    with (tmp_path / "sweep" / "results.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["finished"] + ["failed"] * 5

    before = digest(tmp_path / "sweep" / jobs(tmp_path)["seed=0"].directory.name)
    again = ("resume", "sweep", "--program", PROGRAM)  # the fault has been mended
    done = python(ROOT / "scripts" / "sweep.py", *again, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {job.status for job in jobs(tmp_path).values()} == {"finished"}
    assert digest(tmp_path / "sweep" / jobs(tmp_path)["seed=0"].directory.name) == before
    assert len({job.metric for job in jobs(tmp_path).values()}) == 1
    status = python(ROOT / "scripts" / "sweep.py", "status", "sweep", cwd=tmp_path)
    assert "6 of 6 jobs finished" in status.stdout


def test_a_preempted_job_is_continued_by_its_sweep_and_a_value_given_twice_is_one_job(tmp_path: Path) -> None:
    done = sweep(tmp_path, "seed=7,0,0", FAULTS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    job, other = SweepJobs(tmp_path / "sweep").jobs.values()
    assert (job.status, job.attempt) == ("finished", 2)
    assert (other.status, other.attempt, other.metric) == ("finished", 1, job.metric)
    assert not [*(tmp_path / "sweep").glob("*.failed-*")]  # it went on, it was not begun again


def test_more_values_run_only_the_new_jobs_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    journal = {"JOURNAL": str(tmp_path / "journal")}
    assert sweep(tmp_path, "model.optimizer.lr=0.1,0.2", **journal).returncode == 0
    first = digest(tmp_path / "sweep" / jobs(tmp_path)["model.optimizer.lr=0.2"].directory.name)
    # in another order, and spelled in another way
    done = sweep(tmp_path, "model.optimizer.lr=3e-1,0.2,1e-1", "seed=0", "hydra.sweeper.max_batch_size=2", **journal)
    assert done.returncode == 0
    assert done.stdout.count("results.csv") == 1  # one table, whatever the sweeper's batches
    assert sorted(path.name.rsplit(".", 2)[0] for path in (tmp_path / "journal").glob("*.began")) == ["0.1", "0.2", "0.3"]
    assert digest(tmp_path / "sweep" / jobs(tmp_path)["model.optimizer.lr=0.2"].directory.name) == first
    names = {path.name for path in (tmp_path / "sweep").iterdir() if path.is_file()}
    assert names == {"lock", "multirun.yaml", "results.csv"}


def test_what_can_not_start_is_refused_before_the_first_job(tmp_path: Path) -> None:
    fixed = " ".join(FIXED)
    for override, line in {
        "datamodule.batch_size=64,0": f"job 1 ({fixed} datamodule.batch_size=0): datamodule.batch_size=0:",
        "model.optimiser.lr=1,2": "model.optimiser.lr=1,2: unknown key; did you mean model.optimizer",
        "datamodule.data_dir=a,b": f"job 0 ({fixed} datamodule.data_dir=a): datamodule.data_dir=a: does not tell jobs apart",
        "model=glob(zzz*)": "model=glob(zzz*): no job comes of this",
        "hydra.sweeper.max_batch_size=1 seed=0,-1": f"job 1 ({fixed} seed=-1): seed=-1:",
    }.items():
        done = sweep(tmp_path, *override.split())
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.startswith(line)
    done = sweep(tmp_path, "seed=1,2", "hydra.launcher.dry_run=true")
    assert done.returncode == 0
    assert done.stdout.count("1 CPU slot") == 2
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_a_sweep_to_be_resumed(tmp_path: Path) -> None:
    arguments = ("-m", *FIXED, "hydra.sweep.dir=sweep", "seed=6,0")
    with started(PROGRAM, *arguments, cwd=tmp_path, FAULTS="1") as process:
        wait_for(lambda: list((tmp_path / "sweep").glob("*/checkpoints/last.ckpt")))
        other = sweep(tmp_path, "seed=0")
        assert other.returncode == 2
        assert f"is being run by process {process.pid} on " in other.stderr
        process.send_signal(signal.SIGINT)
        time.sleep(2)  # two that wait for a handler are one
        process.send_signal(signal.SIGINT)  # the job ignores the first
        _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 75
    assert "lockstep sweep resume" in errors
    assert {name: job.status for name, job in jobs(tmp_path).items()} == {"seed=6": "preempted", "seed=0": "queued"}
    done = sweep(tmp_path, "seed=6,0")
    assert done.returncode == 0
    assert jobs(tmp_path)["seed=6"].metric == jobs(tmp_path)["seed=0"].metric  # continued from its checkpoint


@pytest.mark.timeout(900)  # its jobs hang, and are waited for
def test_five_jobs_survive_chaos(tmp_path: Path) -> None:
    """Jobs raise, hang and are killed at random, the sweep is killed with -9 twice and interrupted once."""
    grid = "model.optimizer.lr=" + ",".join(f"0.{i:02}" for i in range(1, 6))
    (tmp_path / "calm").mkdir()
    assert sweep(tmp_path / "calm", grid, "hydra.launcher.jobs=2").returncode == 0
    (tmp_path / "journal").mkdir()
    dice = random.Random(0)
    disturbances = [signal.SIGKILL, signal.SIGINT, signal.SIGKILL, *[None] * 20]
    env = {"JOURNAL": str(tmp_path / "journal"), "CHAOS": "0"}
    code = -1
    arguments = ("-m", *FIXED, "hydra.sweep.dir=sweep", grid, "hydra.launcher.jobs=2", "hydra.launcher.timeout=7")
    for disturbance in disturbances:
        with started(PROGRAM, *arguments, cwd=tmp_path, fresh=True, **env) as process:
            if disturbance is not None:
                time.sleep(dice.uniform(4, 7))
                process.send_signal(disturbance)
            process.communicate(timeout=100)
            wait_for(lambda: not living_in(tmp_path), seconds=30, pause=0.2)
        if (code := process.returncode) == 0:
            break
    assert code == 0
    results, calm = jobs(tmp_path), jobs(tmp_path / "calm")
    assert {job.status for job in results.values()} == {"finished"}
    assert {name: job.metric for name, job in results.items()} == {name: job.metric for name, job in calm.items()}
    assert len(results) == 5
    for i in range(1, 6):
        entries = [*(tmp_path / "journal").glob(f"0.{i:02}".rstrip("0") + ".*")]
        entries.sort(key=lambda path: int(path.name.split(".")[2]))
        assert [entry.suffix for entry in entries].count(".finished") == 1
        assert entries[-1].suffix == ".finished"  # and none began after it


def test_a_terminal_that_closes_ends_a_sweep_to_be_resumed(tmp_path: Path) -> None:
    arguments = ("-m", *FIXED, "hydra.sweep.dir=sweep", "seed=8,0")
    with started(PROGRAM, *arguments, cwd=tmp_path, fresh=True, FAULTS="1") as process:
        wait_for(lambda: list((tmp_path / "sweep").glob("*/checkpoints/last.ckpt")))
        process.stdout.close()
        process.stderr.close()
        for _ in range(2):  # a shell passes it on to what the terminal has sent already
            process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
        assert process.wait(timeout=TIMEOUT) == 75
    results = {name: (job.status, job.reason) for name, job in jobs(tmp_path).items()}
    assert results == {"seed=8": ("preempted", "interrupted by SIGHUP"), "seed=0": ("queued", None)}
    names = [job.directory.name.rpartition("_")[0] for job in jobs(tmp_path).values()]
    assert names == ["seed=8", "seed=0"]  # what all jobs have in common is not in their names
