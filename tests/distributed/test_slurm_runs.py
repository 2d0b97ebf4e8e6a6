"""Runs by scripts/train.sbatch on a real SLURM, which is set up and taken down here: two nodes, and how they can come to lose
a run. Each is requeued, and one of them is followed to its end, which has the bits of an undisturbed one."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from bitwise import differences
from commands import ROOT, train
from slurm_cluster import Cluster
from waiting import wait_for

from lockstep.checkpointing import read_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(slurm_cluster.why_not() is not None, reason=slurm_cluster.why_not() or ""),
]
OPTIONS = ("trainer.max_epochs=1", "datamodule.batch_size=80", "model=mlp", "datamodule.augment=null", "test=false")
SECONDS = 180
OPTIONS += ("callbacks.pictures=null", "logger=csv", "guards.checkpoint.every_n_steps=2", "callbacks.throughput=null")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster.cluster() as one:
        yield one


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkout, as train.sbatch wants it."""
    for name in ("conf", "train.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    (tmp_path / "logs").mkdir()
    return tmp_path


def submit(cluster: Cluster, place: Path, *overrides: str) -> str:
    """A run of one process on each node; its job's number. Nodes of one machine have names that lead nowhere."""
    variables = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    flags = ["--parsable", "--ntasks-per-node=1", "--gres=none", "--cpus-per-task=1", "--time=10"]
    command = [*flags, str(ROOT / "scripts" / "train.sbatch"), "trainer.accelerator=cpu", *OPTIONS, *overrides]
    return cluster.ask("sbatch", *command, cwd=place, **variables).strip()


def run_of(place: Path, job: str) -> Path:
    return place / "logs" / f"slurm-{job}"


def status(run: Path) -> dict[str, Any]:
    path = run / "status.json"
    return json.loads(path.read_text()) if path.exists() else {}


def said_of(cluster: Cluster, job: str) -> str:
    return cluster.ask("scontrol", "show", "job", job)


def is_requeued(cluster: Cluster, job: str) -> bool:
    return "JobState=PENDING" in (said := said_of(cluster, job)) and "Restarts=0" not in said


def go_on(cluster: Cluster, job: str) -> None:
    """SLURM lets a requeued job wait for two minutes, while which it tidies up."""
    wait_for(lambda: is_requeued(cluster, job) and cluster.states() == ["idle", "idle"], SECONDS)
    cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")


def has_finished(run: Path) -> bool:
    assert is_named(run) or status(run)["status"] in ("running", "finished"), output(run)
    return status(run).get("status") == "finished"


def is_named(run: Path) -> bool:
    """Does a run that waits for its next start say so? SLURM may be quicker than the batch script to see that a node is lost."""
    said = status(run)
    return said.get("status") in (None, "preempted") or "has_lost_rank" in said


def output(run: Path) -> str:
    return run.with_name(f"{run.name}.out").read_text(errors="replace")


def state(run: Path) -> dict[str, Any]:
    return read_checkpoint("last", run / "checkpoints" / "last.ckpt") | {"callbacks": None}


def test_a_dead_node_is_a_requeue_and_the_same_bits(cluster: Cluster, place: Path) -> None:
    """Killed with all that ran on it, in the middle of the training."""
    job = submit(cluster, place, "+callbacks.fault={_target_:faults.Fault,rank:1,how:hang,batch:5,once:true}")
    run = run_of(place, job)
    wait_for((run / "fault of rank 1").exists, SECONDS)
    cluster.kill_node("n2")
    wait_for(lambda: is_requeued(cluster, job), SECONDS)
    assert is_named(run), output(run)
    cluster.start_node("n2")
    go_on(cluster, job)
    done = train("trainer.devices=2", *OPTIONS, "hydra.run.dir=undisturbed", cwd=place)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: has_finished(run), SECONDS)
    wait_for(lambda: "JobState=COMPLETED" in said_of(cluster, job), SECONDS)
    assert f"Continuing from {run}/checkpoints/last.ckpt" in output(run) + (run / "train.log").read_text()
    assert not differences(state(place / "undisturbed"), state(run))


def test_a_job_that_is_launched_on_a_dead_node_is_requeued(cluster: Cluster, place: Path) -> None:
    cluster.kill_node("n2")
    job = submit(cluster, place)
    run = run_of(place, job)
    wait_for(lambda: is_requeued(cluster, job), SECONDS)
    assert is_named(run), output(run)
    cluster.start_node("n2")
    cluster.ask("scancel", job)


def test_a_warning_before_the_first_step_is_a_requeue(cluster: Cluster, place: Path) -> None:
    """While Python starts, while torch is imported, and while rank zero waits for another one that will not come."""
    jobs = [submit(cluster, place) for _ in range(3)]
    starting, importing, waiting = jobs
    warn(cluster, starting, lambda: cluster.processes_of(starting))
    warn(cluster, importing, lambda: status(run_of(place, importing)).get("status") == "running")
    wait_for(lambda: len(cluster.processes_of(waiting)) == 2)
    os.kill(cluster.processes_of(waiting)["1"], signal.SIGSTOP)
    warn(cluster, waiting, lambda: is_listening(15000 + int(waiting)))
    for job in jobs:
        wait_for(lambda job=job: is_requeued(cluster, job), SECONDS)
        assert is_named(run_of(place, job)), output(run_of(place, job))
        cluster.ask("scancel", job)


def warn(cluster: Cluster, job: str, when: Any) -> None:
    """As SLURM does before a time limit."""
    wait_for(when, SECONDS)
    cluster.ask("scancel", "--signal=USR1", job)


def is_listening(port: int) -> bool:
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in lines)
