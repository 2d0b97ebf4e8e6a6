"""Runs by scripts/train.sbatch on a real SLURM, which is set up and taken down here: two nodes, and how they can come to lose
a run. Each run is requeued, and continues to the bits of an undisturbed one."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from bitwise import differences, state
from commands import ROOT, environment, status, train
from slurm_cluster import Cluster
from waiting import wait_for

pytestmark = slurm_cluster.MARKS
OPTIONS = ("trainer.max_epochs=1", "datamodule.batch_size=80", "model=mlp", "datamodule.augment=null", "test=false")
OPTIONS += ("++callbacks.pictures=null", "logger=csv", "guards.checkpoint.every_n_steps=2", "callbacks.throughput=null")
wait_for_slurm = partial(wait_for, seconds=180, pause=0.2)  # whose commands take time of processors that jobs need
SECONDS = 180
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
FIRST_PORT = 15000  # of a job: this and the last four digits of its number


cluster = pytest.fixture(slurm_cluster.cluster, scope="module")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of an undisturbed run of two ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train("trainer.devices=2", *OPTIONS, "hydra.run.dir=run", cwd=folder, code=0)
    return state(folder / "run")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As train.sbatch wants it."""
    for name in ("conf", "train.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    (tmp_path / "logs").mkdir()
    script = (ROOT / "scripts" / "train.sbatch").read_text()
    assert "--wait=60" in script
    (tmp_path / "train.sbatch").write_text(script.replace("--wait=60", "--wait=5"))  # for ranks that are dead or stuck
    return tmp_path


def test_a_dead_node_is_a_requeue(cluster: Cluster, checkout: Path, undisturbed: dict[str, Any]) -> None:
    """Killed with all that runs on it, in the middle of the training: the rank on the other node notices first."""
    job, run = submit(cluster, checkout, fault(1, batch=5))
    wait_for((run / "fault of rank 1").exists, SECONDS)
    cluster.kill_node("n2")
    wait_for_slurm(lambda: is_requeued(cluster, job))
    assert is_named(run), output(run)
    cluster.start_node("n2")
    assert not differences(undisturbed, continued(cluster, job, run))
    assert f"Continuing from {run}/checkpoints/last.ckpt" in output(run) + (run / "train.log").read_text()


def test_a_job_that_is_launched_on_a_dead_node_is_requeued(cluster: Cluster, checkout: Path) -> None:
    """It has left nothing; how such a job begins is that of one that was warned while it imported."""
    cluster.kill_node("n2")
    job, run = submit(cluster, checkout)
    wait_for_slurm(lambda: is_requeued(cluster, job))
    assert is_named(run), output(run)
    cluster.start_node("n2")
    cancel(cluster, job)


@pytest.mark.parametrize("moment", ["import", "process group", "first batch"])
def test_a_warning_before_the_first_step_is_a_requeue(
    moment: str, cluster: Cluster, checkout: Path, undisturbed: dict[str, Any]
) -> None:
    """One rank is stuck there and hears nothing; another leaves with 75."""
    stuck = 1 if moment == "process group" else 0  # then rank zero waits for it in there
    in_step = [fault(stuck, batch=0), "guards.preemption.deadline=5"]  # the other rank waits for the stuck one until then
    job, run = submit(cluster, checkout, *(in_step if moment == "first batch" else []))
    if moment == "first batch":
        wait_for((run / f"fault of rank {stuck}").exists, SECONDS)
    wait_for_slurm(lambda: len(cluster.list_processes(job)) == 2)
    os.kill(cluster.list_processes(job)[str(stuck)], signal.SIGSTOP)
    if moment == "process group":
        wait_for(lambda: is_listening(FIRST_PORT + int(job)), SECONDS)
    if moment == "import":
        wait_for(lambda: expects_warnings(cluster.list_processes(job)["1"]), SECONDS)
    cluster.ask("scancel", "--signal=USR1", job)  # as SLURM does before a time limit
    wait_for_slurm(lambda: is_requeued(cluster, job))
    assert is_named(run), output(run)
    if moment == "process group":
        cancel(cluster, job)  # what it has left is what it leaves at its first batch
        return
    assert not differences(undisturbed, continued(cluster, job, run))


def cancel(cluster: Cluster, job: str) -> None:
    """Ends a job that waits for its next start."""
    wait_for_slurm(lambda: state_of_job(cluster, job) == "PENDING")
    cluster.ask("scancel", job)
    wait_for_slurm(lambda: cluster.is_idle() and not cluster.watches_over(job))


def submit(cluster: Cluster, checkout: Path, *overrides: str) -> tuple[str, Path]:
    """A run of one process on each node: its job's number and its directory. Nodes' names lead nowhere here."""
    flags = ["--parsable", "--ntasks-per-node=1", "--gres=none", "--cpus-per-task=1", "--time=10"]
    command = [*flags, "train.sbatch", "trainer.accelerator=cpu", *OPTIONS, *overrides]
    variables = environment(MASTER_ADDR="127.0.0.1")
    job = cluster.ask("sbatch", *command, cwd=checkout, **variables).strip()
    assert job
    return job, checkout / "logs" / f"slurm-{job}"


def fault(rank: int, batch: int) -> str:
    return f"+callbacks.fault={{_target_:faults.Fault,rank:{rank},how:hang,batch:{batch},once:true}}"


def expects_warnings(pid: int) -> bool:
    """Return whether the process has a handler for SIGUSR1 by now."""
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> signal.SIGUSR1 - 1 & 1)


def is_listening(port: int) -> bool:
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in lines)


def is_requeued(cluster: Cluster, job: str) -> bool:
    """It may not have ended yet, where a node is dead."""
    said = cluster.ask("scontrol", "show", "job", job)
    return bool(said) and "Restarts=0" not in said


def is_named(run: Path) -> bool:
    """Return whether a run that waits for its next start says so."""
    said = status(run)
    return said.get("status") in (None, "preempted") or "has_lost_rank" in said


def continued(cluster: Cluster, job: str, run: Path) -> dict[str, Any]:
    """Return the last checkpoint of the requeued job. SLURM would let it wait for two minutes; a node refuses to launch
    a job in the second in which it has ended that job's earlier life ("Job credential revoked" in slurmctld.log)."""
    wait_for_slurm(lambda: state_of_job(cluster, job) == "PENDING")
    wait_for_slurm(lambda: cluster.is_idle() and not cluster.watches_over(job))
    cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now+3")
    wait_for_slurm(lambda: state_of_job(cluster, job) in ENDED)
    assert status(run).get("status") == "finished", output(run)
    return state(run)


def state_of_job(cluster: Cluster, job: str) -> str:
    """In SLURM's words; empty where it does not answer."""
    words = cluster.ask("scontrol", "show", "job", job).split()
    return next((word.partition("=")[2] for word in words if word.startswith("JobState=")), "")


def output(run: Path) -> str:
    return run.with_name(f"{run.name}.out").read_text(errors="replace")
