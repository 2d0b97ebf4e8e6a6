"""Sweeps on a real SLURM, which is set up and taken down here: two nodes of four fake GPUs each."""

import csv
from collections import Counter
from pathlib import Path

import pytest
import slurm_cluster
from commands import ROOT, python, started
from slurm_cluster import Cluster
from waiting import wait_for

from lockstep.sweeps.jobs import Job, SweepJobs

pytestmark = slurm_cluster.MARKS
PROGRAM, SWEEP = ROOT / "tests" / "support" / "fakes" / "program.py", ROOT / "scripts" / "sweep.py"
SLURM = ("hydra/launcher=slurm", "hydra.launcher.poll=0.3", "hydra.launcher.sbatch=['--gres=gpu:${trainer.devices}']")
# nodes of one machine have names that lead nowhere
SLURM += ("hydra.launcher.setup=['export MASTER_ADDR=127.0.0.1']",)
GRID = ("trainer=cpu", "fresh_processes=True", "hydra.sweep.dir=sweep", "trainer.devices=1,4", "seed=0,1,7,8")
cluster = pytest.fixture(slurm_cluster.cluster, scope="module")


def jobs(folder: Path) -> dict[str, Job]:
    """Return the jobs by their devices and seeds."""
    entries = SweepJobs(folder / "sweep").jobs.values()
    return {" ".join(item.partition("=")[2] for item in job.overrides[2:]): job for job in entries}


def test_eight_jobs_are_answered_for_whatever_happens(cluster: Cluster, tmp_path: Path) -> None:
    """One job of one device raises, another is preempted, a third waits for ever and is cancelled."""
    (tmp_path / "slurm").mkdir()
    (tmp_path / "journal").mkdir()
    command = (PROGRAM, "-m", *SLURM, *GRID)
    env = cluster.environment | {"FAULTS": "1", "JOURNAL": str(tmp_path / "journal")}
    with started(*command, cwd=tmp_path / "slurm", **env) as process:
        wait_for(lambda: len(cluster.tasks()) >= 4, 60)
        process.kill()
    # it has failed before the next command looks, which therefore tries it again
    wait_for(lambda: [*(tmp_path / "slurm" / "sweep").glob("devices=1_seed=1_*/exit_code")])
    cluster.ask("scontrol", "update", "nodename=n2", "state=drain", "reason=planted")
    with started(*command, cwd=tmp_path / "slurm", **env) as process:
        wait_for(lambda: jobs(tmp_path / "slurm")["1 1"].attempt == 2)  # by this command, which knows all that is queued
        wait_for(lambda: jobs(tmp_path / "slurm")["1 8"].status == "running")
        place = jobs(tmp_path / "slurm")["1 8"].queue
        (task,) = [number for number, name, *_ in cluster.tasks() if name == place]
        cluster.ask("scancel", task)
        output, errors = process.communicate(timeout=120)
    cluster.ask("scontrol", "update", "nodename=n2", "state=resume")
    assert process.returncode == 75, output + errors
    states = {name: (job.status, job.reason) for name, job in jobs(tmp_path / "slurm").items()}
    assert states.pop("1 1") == ("failed", "ended with code 1: planted fault")
    assert states.pop("1 8") == ("preempted", "CANCELLED by SLURM on n1")
    assert (len(states), set(states.values())) == (6, {("finished", None)})
    attempts = {name: job.attempt for name, job in jobs(tmp_path / "slurm").items()}
    assert attempts["1 7"] == 2
    assert sum(attempts.values()) == len(cluster.tasks())  # nothing was submitted that is not known
    assert {name: number for name, number in attempts.items() if number > 1}.keys() <= {"1 1", "1 7"}
    assert finishes(tmp_path) == dict.fromkeys([jobs(tmp_path / "slurm")[name].directory.name for name in states], 1)

    status = python(SWEEP, "status", "sweep", cwd=tmp_path / "slurm", **cluster.environment)
    assert (status.stdout.count(" finished "), status.stdout.count(" preempted: CANCELLED")) == (6, 1)
    again = ("resume", "sweep", "--program", PROGRAM)  # the fault has been mended
    python(SWEEP, *again, cwd=tmp_path / "slurm", code=0, **cluster.environment)
    assert len(cluster.tasks()) == sum(attempts.values()) + 2
    assert set(finishes(tmp_path).values()) == {1}
    with (tmp_path / "slurm" / "sweep" / "results.csv").open() as file:
        assert len([*csv.DictReader(file)]) == 8


def test_a_search_goes_through_the_queue_and_finds_its_trials_there_again(cluster: Cluster, tmp_path: Path) -> None:
    study = pytest.importorskip("lockstep.search.study")
    (tmp_path / "journal").mkdir()
    search = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=2", "hydra.sweep.dir=sweep")
    search += ("model.optimizer.lr=tag(log,interval(1e-3,1e-1))", "fresh_processes=True", "trainer=cpu")
    before, command = len(cluster.tasks()), (PROGRAM, "-m", *SLURM, *search)
    env = cluster.environment | {"JOURNAL": str(tmp_path / "journal")}
    with started(*command, cwd=tmp_path, **env) as process:
        wait_for(lambda: [*(tmp_path / "journal").glob("*.began")], 60)
        process.kill()
    python(*command, cwd=tmp_path, fresh=True, code=0, **env)
    trials = study.load_study(tmp_path / "sweep").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4
    assert finishes(tmp_path) == dict.fromkeys([trial.user_attrs["directory"] for trial in trials], 1)
    assert len(cluster.tasks()) == before + 4


def finishes(folder: Path) -> Counter[str]:
    """How often each job has trained to its end."""
    return Counter(path.read_text() for path in (folder / "journal").glob("*.finished"))
