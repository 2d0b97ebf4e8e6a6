"""Sweeps and a search on a real Ray: one of the sweep's own on this machine, and a cluster of two nodes."""

import contextlib
import importlib
import importlib.util
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, environment, python, started
from waiting import wait_for

from lockstep.search.study import load_study
from lockstep.sweeps.jobs import Job, SweepJobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]
PROGRAM, TRAIN = ROOT / "tests" / "support" / "fakes" / "program.py", ROOT / "train.py"
RAY = ("hydra/launcher=ray", "hydra.launcher.num_cpus=2", "hydra.sweep.dir=sweep")
FIRST, SECOND = "model.optimizer.lr=0.001", "model.optimizer.lr=0.002"
WAITS = "seed=8"  # of program.py: it waits for ever after two steps


def jobs(sweep: Path) -> dict[str, Job]:
    """Return the jobs by their last overrides."""
    return {job.overrides[-1]: job for job in SweepJobs(sweep).jobs.values()}


def results(sweep: Path) -> dict[str, Any]:
    """Each job's identity, state and metrics, to the bit."""
    named = {name: (job.key, job.status, sweep / job.directory.name / "metrics.json") for name, job in jobs(sweep).items()}
    return {name: (*job, json.loads(path.read_text())["metrics"]) for name, (*job, path) in named.items()}


def states(sweep: Path) -> dict[str, str]:
    return {name: job.status for name, job in jobs(sweep).items()}


def waits(sweep: Path, name: str) -> bool:
    """True if it has come to where it waits, in its latest attempt."""
    return (
        states(sweep).get(name) == "running"
        and (folder := sweep / jobs(sweep)[name].directory.name).is_dir()
        and ((folder / "status.json").is_file() and (folder / "checkpoints" / "last.ckpt").is_file())
    )


def worker_of(run: Path) -> int:
    """Return the process that has started the one in whose command line a run's directory is."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if run.name.encode() in path.read_bytes():
                return int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError(f"no process runs {run}")


def test_a_sweep_ends_as_without_ray_and_what_has_finished_is_skipped(tmp_path: Path) -> None:
    sweep = ("-m", "trainer=cpu", "trainer.max_epochs=1", "datamodule.batch_size=256", "model.optimizer.lr=1e-3,3e-3,1e-2")
    python(TRAIN, *sweep, "hydra.sweep.dir=local", cwd=tmp_path, timeout=400, code=0)
    done = python(TRAIN, *sweep, *RAY, cwd=tmp_path, timeout=400, fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert results(tmp_path / "sweep") == results(tmp_path / "local")
    python(TRAIN, *sweep, *RAY, cwd=tmp_path, fresh=True, code=0)
    assert [job.attempt for job in jobs(tmp_path / "sweep").values()] == [1, 1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_lost_worker_is_replaced_and_a_request_to_stop_ends_all(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "journal").mkdir()
    command = (PROGRAM, "-m", *RAY, "trainer=cpu", "seed=0,8")
    env = {"JOURNAL": str(tmp_path / "journal")}
    sweep = tmp_path / "sweep"
    with started(*command, cwd=tmp_path, fresh=True, FAULTS="1", **env) as process:
        wait_for(lambda: waits(sweep, WAITS), pause=0.2)
        wait_for(lambda: states(sweep)["seed=0"] == "finished", pause=0.2)
        os.kill(worker_of(sweep / jobs(sweep)[WAITS].directory.name), signal.SIGKILL)
        wait_for(lambda: jobs(sweep)[WAITS].attempt == 2 and waits(sweep, WAITS), pause=0.2)
        wait_for(lambda: len(began(tmp_path)) == 3)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 75, output + errors
    assert (jobs(sweep)[WAITS].attempt, jobs(sweep)[WAITS].reason) == (2, f"interrupted by {number.name}")
    assert states(sweep) == {"seed=0": "finished", WAITS: "preempted"}
    python(*command, cwd=tmp_path, fresh=True, **env, code=0)
    assert len(began(tmp_path)) == 4
    metrics = [metrics for *_, metrics in results(sweep).values()]
    assert metrics[0] == metrics[1]  # it went on from its checkpoints, twice


def test_a_job_that_raises_has_failed_and_is_tried_again_as_often_as_is_said(tmp_path: Path) -> None:
    command = (PROGRAM, "-m", *RAY, "trainer=cpu", "seed=1,2", "hydra.launcher.retries=1")  # raises; kills itself
    python(*command, cwd=tmp_path, fresh=True, FAULTS="1", code=1)
    ends = {name: (job.attempt, job.reason) for name, job in jobs(tmp_path / "sweep").items()}
    assert ends == {"seed=1": (2, "ended with code 1: planted fault"), "seed=2": (2, "killed by SIGKILL")}


def test_what_ray_can_never_give_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    given = ("trainer=cpu", "trainer.devices=1,3", "datamodule.batch_size=64")
    done = python(PROGRAM, "-m", *RAY, *given, cwd=tmp_path, fresh=True)
    line = "hydra/launcher=ray: a job takes 1 node with CPU=3; use what Ray has: CPU=2 GPU=0"
    assert (done.returncode, line in done.stderr, [*tmp_path.iterdir()]) == (2, True, []), done.stdout + done.stderr


NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each, on this machine."""
    utils = importlib.import_module("ray.cluster_utils")  # a checkout without Ray is checked too
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        nodes = utils.Cluster(initialize_head=True, head_node_args=NODE)
        nodes.add_node(**NODE)
    yield nodes
    nodes.shutdown()


def test_a_job_of_two_nodes_computes_what_two_processes_of_one_do(cluster: Any, tmp_path: Path) -> None:
    given = ("-m", "trainer=cpu", "trainer.max_epochs=1", "datamodule.batch_size=128", "model.optimizer.lr=3e-3")
    python(TRAIN, *given, "trainer.devices=2", "hydra.sweep.dir=local", cwd=tmp_path, timeout=200, code=0)
    places = ("hydra/launcher=ray", f"hydra.launcher.address={cluster.address}", "hydra.sweep.dir=sweep", "trainer.num_nodes=2")
    python(TRAIN, *given, *places, cwd=tmp_path, timeout=300, fresh=True, code=0)
    (here,), (there,) = (results(tmp_path / name).values() for name in ("local", "sweep"))
    assert here[1:] == there[1:]


def test_a_node_is_lost_and_its_job_goes_on_elsewhere(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    sweep, journal = tmp_path / "sweep", str(tmp_path / "journal")
    command = (PROGRAM, "-m", "hydra/launcher=ray", f"hydra.launcher.address={cluster.address}", "hydra.sweep.dir=sweep")
    command += ("trainer=cpu", "seed=8", "model.optimizer.lr=1e-3,2e-3")
    with started(*command, cwd=tmp_path, fresh=True, FAULTS="1", JOURNAL=journal) as process:
        wait_for(lambda: all(waits(sweep, name) for name in (FIRST, SECOND)), pause=0.2)
        (second,) = cluster.worker_nodes
        cluster.remove_node(second, allow_graceful=False)
        wait_for(lambda: "preempted" in states(sweep).values(), pause=0.2)
        (lost,) = [name for name, status in states(sweep).items() if status == "preempted"]
        cluster.add_node(**NODE)
        wait_for(lambda: waits(sweep, lost) and len(began(tmp_path)) == 3, pause=0.2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 75, output + errors
    assert jobs(sweep)[lost].attempt == 2
    done = python(*command, cwd=tmp_path, fresh=True, JOURNAL=journal)  # the cluster is there still
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(states(sweep).values()) == {"finished"}


def began(folder: Path) -> list[Path]:
    return [*(folder / "journal").glob("*.began")]


SMALL = ("trainer=cpu", "model=mlp", "datamodule.batch_size=256", "trainer.max_epochs=2", "hydra.sweeper.n_trials=3")


def test_jobs_that_asha_gives_up_end_as_pruned_ones(tmp_path: Path) -> None:
    python(ROOT / "train.py", "-m", "sweep=ray_tune", *SMALL, "hydra.sweep.dir=sweep", cwd=tmp_path, timeout=300, code=0)
    reasons = Counter(job.reason for job in SweepJobs(tmp_path / "sweep").jobs.values())
    assert reasons == {"trainer.max_epochs=2": 2, "pruned after 1 validations": 1}  # the second is the worst after an epoch
    trials = load_study(tmp_path / "sweep").trials
    assert [len(trial.intermediate_values) for trial in trials if trial.state.name == "COMPLETE"] == [2, 2]
